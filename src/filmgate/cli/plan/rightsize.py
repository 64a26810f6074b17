"""`filmgate plan rightsize`: from a week of GPU metrics, too big, too small, or fine."""

from typing import TYPE_CHECKING

from filmgate.cli.plan import options
from filmgate.cli.plan.question import Ground

if TYPE_CHECKING:
    from filmgate.planner.answer import Answer

NO_LENGTH = {
    "frames": "metrics do not know what was made; `filmgate plan fit --frames` does",
    "seconds": "metrics do not know what was made; `filmgate plan fit --seconds` does",
}


def answer_rightsize(
    ground: Ground,
    *,
    utilisation: options.MetricsFile,
    instance: options.InstanceName = None,
    gpu: options.GpuName = None,
) -> "Answer":
    """Judge the machine that the metrics come from by what it did."""
    from filmgate.catalog.utilisation import read_utilisation
    from filmgate.cli.plan import opening
    from filmgate.planner.rightsize import plan_rightsize

    name, bare = opening.one_machine(instance, gpu, ground.catalog)
    samples = read_utilisation(utilisation)
    return plan_rightsize(samples, ground.catalog, ground.region, gpu=bare, instance=name)
