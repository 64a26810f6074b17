"""`filmgate plan fit`: which catalog models fit one machine."""

from typing import TYPE_CHECKING

from filmgate.cli.plan import options
from filmgate.cli.plan.command import Facts

if TYPE_CHECKING:
    from filmgate.planner.answer import Answer


def answer_fit(
    facts: Facts,
    *,
    instance: options.InstanceName = None,
    gpu: options.GpuName = None,
    seconds: options.Seconds = None,
    frames: options.Frames = None,
) -> "Answer":
    """List the catalog models that fit one machine, with their speed, and why the others do not fit."""
    from filmgate.cli.plan import inputs
    from filmgate.planner.fit import Length, plan_fit

    name, bare = inputs.one_machine(instance, gpu, facts.catalog)
    inputs.check_length(seconds, frames)
    length = Length(seconds, frames)
    return plan_fit(facts.catalog, facts.calibration, facts.region, gpu=bare, instance=name, length=length)
