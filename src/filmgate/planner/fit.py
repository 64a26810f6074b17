"""Answers which catalog models fit one machine."""

from dataclasses import dataclass, replace

from filmgate.catalog.calibrations import Calibration
from filmgate.catalog.catalog import Catalog
from filmgate.catalog.gpus import GIB, Gpu
from filmgate.catalog.llms import Llm
from filmgate.catalog.video_models import VideoModel
from filmgate.planner.answer import Answer, Option, Rejected, dated_source
from filmgate.planner.llm.answer import llm_option
from filmgate.planner.llm.question import LlmQuestion
from filmgate.planner.llm.serving import LlmCandidate, evaluate_llm
from filmgate.planner.machines import Machine, machines_for
from filmgate.planner.video.answer import video_option
from filmgate.planner.video.candidates import Candidate, evaluate
from filmgate.planner.video.clip import ClipShape, clip_for, frame_limits
from filmgate.planner.video.question import VideoQuestion

CONTEXT = 8192


@dataclass(frozen=True, slots=True)
class Length:
    """The length of the clips; the default of each model if both are None."""

    seconds: float | None = None
    frames: int | None = None


DEFAULT_LENGTH = Length()


def plan_fit(
    catalog: Catalog,
    calibration: Calibration,
    region: str,
    *,
    gpu: Gpu | None = None,
    instance: str | None = None,
    length: Length = DEFAULT_LENGTH,
) -> Answer:
    """The models that fit, fastest first, and by how much the others do not."""
    machines, unusable = machines_for(catalog, region, gpu=gpu, names=[instance] if instance else [])
    name = instance or (gpu.name if gpu else region)
    answer = Answer(f"which models fit {name}", "clip", "", False, rejected=tuple(unusable))
    if not machines:
        reason = unusable[0].reason if unusable else "unknown"
        return replace(answer, verdict=f"Nothing runs on {name}: {reason}.")
    machine = machines[0]
    videos = [_video(machine, model, calibration, length) for model in catalog.video_models.values()]
    llms = [_llm(machine, model, calibration) for model in catalog.llms.values()]
    video_options = sorted((o for o in videos if isinstance(o, Option)), key=lambda o: o.seconds)
    llm_options = sorted((o for o in llms if isinstance(o, Option)), key=lambda o: o.peak_bytes)
    ranked = enumerate(video_options + llm_options, start=1)
    memory = f"{machine.gpus} x {machine.gpu.name}, {machine.gpu.memory_bytes / GIB:.1f} GiB"
    return replace(
        answer,
        verdict=(
            f"{machine.name} ({memory}): {len(video_options)} of {len(videos)} video models and "
            f"{len(llm_options)} of {len(llms)} language models fit at their defaults."
        ),
        is_possible=bool(video_options or llm_options),
        options=tuple(replace(option, rank=position) for position, option in ranked),
        rejected=tuple(o for o in videos + llms if isinstance(o, Rejected)),
        sources=(dated_source("GPU", machine.gpu.name, machine.gpu.source, machine.gpu.as_of),),
    )


def _clip(model: VideoModel, length: Length) -> ClipShape:
    """A clip of this length, or of the closest frame count that the model renders."""
    clip = clip_for(model, seconds=length.seconds)
    if length.frames is None:
        return clip
    return replace(clip, frames=frame_limits(model, clip.size).nearest(length.frames))


def _video(
    machine: Machine, model: VideoModel, calibration: Calibration, length: Length
) -> Option | Rejected:
    outcome = evaluate(VideoQuestion(model, _clip(model, length)), machine, calibration)
    if not isinstance(outcome, Candidate):
        return replace(outcome, name=model.id)
    option = video_option(outcome, rank=0)
    return replace(option, name=model.id, replicas=machine.gpus // outcome.split.gpus)


def _llm(machine: Machine, model: Llm, calibration: Calibration) -> Option | Rejected:
    """The highest precision that fits; a rejection is that of the lowest precision."""
    outcome: LlmCandidate | Rejected | None = None
    for precision in dict.fromkeys((model.native_precision, "fp8", "int4")):
        outcome = evaluate_llm(LlmQuestion(model, precision, context=CONTEXT), machine, calibration)
        if isinstance(outcome, LlmCandidate):
            break
    assert outcome is not None, "the loop runs at least once"
    if not isinstance(outcome, LlmCandidate):
        return replace(outcome, name=model.id, reason=f"{outcome.reason} in int4")
    placement = f"{outcome.serving.precision}, {CONTEXT} tokens, 1 sequence"
    return replace(llm_option(outcome, rank=0), name=model.id, usd_per_day=None, placement=placement)
