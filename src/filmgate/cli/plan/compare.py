"""`filmgate plan compare`: a video or language-model question for a few machines only."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from filmgate.cli.options import options_of
from filmgate.cli.plan import options
from filmgate.cli.plan.command import Facts
from filmgate.cli.plan.llm import llm_question
from filmgate.cli.plan.video import video_question
from filmgate.errors import UsageError

if TYPE_CHECKING:
    from filmgate.planner.answer import Answer


def machines_to_compare(
    *, model: options.AnyModelName, instances: options.Instances = None, gpu: options.GpuNames = None
) -> tuple[str, ...]:
    """The names of the machines: instance types and bare GPUs."""
    from filmgate.cli.plan import inputs

    names = inputs.machine_names(instances, "--instances") + inputs.machine_names(gpu, "--gpu")
    if not names:
        raise UsageError(
            f"no machines to compare for {model}; give --instances g6e.24xlarge,g7e.12xlarge or "
            "--gpu H100,H200",
            option="--instances",
        )
    return names


def answer_compare(
    facts: Facts, *, model: str, instances: str | None, gpu: str | None, **given: Any
) -> "Answer":
    """Rank a few machines for one model. Takes the options of `plan video` or `plan llm`."""
    from filmgate.cli.plan import inputs
    from filmgate.planner.llm.answer import plan_llm
    from filmgate.planner.video.answer import plan_video

    names = machines_to_compare(model=model, instances=instances, gpu=gpu)
    if inputs.is_video(model, facts.catalog):
        own = _options_for(video_question, given, f"{model} is a video model")
        video = replace(video_question(facts, model=model, **own), instances=names)
        return plan_video(video, facts.catalog, facts.calibration)
    own = _options_for(llm_question, given, f"{model} is a language model")
    llm = replace(llm_question(facts, model=model, **own), instances=names)
    return plan_llm(llm, facts.catalog, facts.calibration)


def _options_for(question: Callable[..., Any], given: Mapping[str, Any], what: str) -> dict[str, Any]:
    """The given options of this kind of question. Raises UsageError for an option of the other kind."""
    every = options_of(video_question) | options_of(llm_question)
    foreign = {name: value for name, value in given.items() if name not in options_of(question)}
    for name, value in foreign.items():
        if value != every[name].default:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{what}; the option does not apply to it", option=option)
    return {name: value for name, value in given.items() if name not in foreign}
