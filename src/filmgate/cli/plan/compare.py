"""`filmgate plan compare`: the same question on a few machines only."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from filmgate.cli.plan import options
from filmgate.cli.plan.llm import ask_llm
from filmgate.cli.plan.question import Ground, options_of
from filmgate.cli.plan.video import ask_video
from filmgate.errors import UsageError

if TYPE_CHECKING:
    from filmgate.planner.answer import Answer


def choose_machines(
    *, model: options.AnyModelName, instances: options.Instances = None, gpu: options.GpuNames = None
) -> tuple[str, ...]:
    """The names of the machines to compare; a name without a dot is a bare GPU."""
    from filmgate.cli.plan import opening

    names = opening.machine_names(instances, "--instances") + opening.machine_names(gpu, "--gpu")
    if not names:
        raise UsageError(
            f"name machines for {model}: --instances g6e.24xlarge,g7e.12xlarge or --gpu H100,H200",
            option="--instances",
        )
    return names


def answer_compare(
    ground: Ground, *, model: str, instances: str | None, gpu: str | None, **asked: Any
) -> "Answer":
    """Rank a few machines for one model; takes the options of `plan video` or of `plan llm`."""
    from filmgate.cli.plan import opening
    from filmgate.planner.llm.answer import plan_llm
    from filmgate.planner.video.answer import plan_video

    names = choose_machines(model=model, instances=instances, gpu=gpu)
    if opening.is_video(model, ground.catalog):
        own = _own(asked, ask_video, f"{model} is a video model")
        video = replace(ask_video(ground, model=model, **own), instances=names)
        return plan_video(video, ground.catalog, ground.calibration)
    own = _own(asked, ask_llm, f"{model} is a language model")
    served = replace(ask_llm(ground, model=model, **own), instances=names)
    return plan_llm(served, ground.catalog, ground.calibration)


def _own(asked: Mapping[str, Any], asker: Callable[..., Any], what: str) -> dict[str, Any]:
    """What this kind of question takes; raises UsageError when something of the other kind was asked."""
    every = options_of(ask_video) | options_of(ask_llm)
    foreign = {name: value for name, value in asked.items() if name not in options_of(asker)}
    for name, value in foreign.items():
        if value != every[name].default:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{what}: the option says nothing about it", option=option)
    return {name: value for name, value in asked.items() if name not in foreign}
