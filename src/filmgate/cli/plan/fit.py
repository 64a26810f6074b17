"""`filmgate plan fit`: what fits on what I have."""

from typing import TYPE_CHECKING

from filmgate.cli.plan import options
from filmgate.cli.plan.question import Ground

if TYPE_CHECKING:
    from filmgate.planner.answer import Answer


def answer_fit(
    ground: Ground,
    *,
    instance: options.InstanceName = None,
    gpu: options.GpuName = None,
    seconds: options.Seconds = None,
    frames: options.Frames = None,
) -> "Answer":
    """Every model of the catalog on one machine: how fast, or by how much it misses."""
    from filmgate.cli.plan import opening
    from filmgate.planner.fit import Length, plan_fit

    name, bare = opening.one_machine(instance, gpu, ground.catalog)
    opening.check_length(seconds=seconds, frames=frames)
    length = Length(seconds, frames)
    return plan_fit(ground.catalog, ground.calibration, ground.region, gpu=bare, instance=name, length=length)
