"""`filmgate plan rightsize`: whether a machine is too big, too small or fine, from its GPU metrics."""

from typing import TYPE_CHECKING

from filmgate.cli.plan import options
from filmgate.cli.plan.command import Facts

if TYPE_CHECKING:
    from filmgate.planner.answer import Answer

UNSUPPORTED = {
    "frames": "metrics do not depend on the clip; use `filmgate plan fit --frames`",
    "seconds": "metrics do not depend on the clip; use `filmgate plan fit --seconds`",
}


def answer_rightsize(
    facts: Facts,
    *,
    utilisation: options.MetricsFile,
    instance: options.InstanceName = None,
    gpu: options.GpuName = None,
) -> "Answer":
    """Check the size of a machine against its GPU metrics, and list machines that would fit."""
    from filmgate.catalog.utilisation import read_utilisation
    from filmgate.cli.plan import inputs
    from filmgate.planner.rightsize import plan_rightsize

    name, bare = inputs.one_machine(instance, gpu, facts.catalog)
    samples = read_utilisation(utilisation)
    return plan_rightsize(samples, facts.catalog, facts.region, gpu=bare, instance=name)
