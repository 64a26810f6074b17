"""Answers which catalog models fit one machine."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from filmgate.catalog.calibrations import Calibration
from filmgate.catalog.catalog import Catalog
from filmgate.catalog.gpus import Gpu
from filmgate.catalog.llms import Llm
from filmgate.catalog.precisions import BITS_PER_VALUE
from filmgate.catalog.video_models import VideoModel
from filmgate.planner.answer import Answer, Kind, Option, Rejected, grouped_sources
from filmgate.planner.llm.answer import llm_option
from filmgate.planner.llm.question import LlmQuestion
from filmgate.planner.llm.serving import LlmCandidate, evaluate_llm
from filmgate.planner.machines import Machine, machine_sources, machines_for, unusable_because
from filmgate.planner.report.numbers import counted, gib
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

    def __str__(self) -> str:
        if self.seconds is None and self.frames is None:
            return "with their default clip"
        return f"with clips of {self.seconds:g} s" if self.frames is None else f"with {self.frames} frames"


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
    """The models that fit, and by how much the others do not.

    Video models that Filmgate runs come first, the fastest at the top; then the other ones.
    """
    machines, unusable = machines_for(catalog, region, gpu=gpu, names=[instance] if instance else [])
    name = instance or (gpu.name if gpu else region)
    answer = Answer(f"which models fit {name}", Kind.FIT, "", False, rejected=tuple(unusable))
    if not machines:
        return replace(answer, verdict=f"No model is planned on {name}: {unusable_because(unusable[0])}")
    machine = machines[0]
    videos = [_video(machine, model, calibration, length) for model in catalog.video_models.values()]
    llms = [_llm(machine, model, calibration) for model in catalog.llms.values()]
    video_options = _ranked(videos, lambda option: (bool(option.note), option.seconds))
    llm_options = _ranked(llms, lambda option: (False, option.peak_bytes))
    runnable = sum(not option.note for option in video_options)
    return replace(
        answer,
        verdict=(
            f"{machine.name} ({machine.gpus} x {machine.gpu.name}, {gib(machine.gpu.memory_bytes)}): "
            f"{len(video_options)} of {len(videos)} video models fit {length}, and Filmgate runs {runnable} "
            f"of these. {len(llm_options)} of {len(llms)} language models fit with one sequence of "
            f"{CONTEXT:,} tokens."
        ),
        is_possible=bool(video_options or llm_options),
        options=(*video_options, *llm_options),
        rejected=tuple(o for o in videos + llms if isinstance(o, Rejected)),
        sources=(
            *machine_sources([machine]),
            *grouped_sources("model", [*catalog.video_models.items(), *catalog.llms.items()]),
            f"calibration: {calibration.source} ({calibration.as_of})",
        ),
    )


def _ranked(
    outcomes: Iterable[Option | Rejected], key: Callable[[Option], tuple[bool, float]]
) -> list[Option]:
    options = sorted((one for one in outcomes if isinstance(one, Option)), key=key)
    return [replace(option, rank=position) for position, option in enumerate(options, start=1)]


def _clip(model: VideoModel, length: Length) -> ClipShape | Rejected:
    """A clip of this length, or of the closest frame count that the model renders."""
    clip = clip_for(model)
    limits, frames = frame_limits(model, clip.size), length.frames
    if length.seconds is not None:
        frames = max(limits.count(length.seconds, clip.fps), limits.offset + limits.step)
    if frames is None:
        return clip
    if frames > limits.max:
        reason = f"{frames} frames of {clip.size} are too long; the planner computes at most {limits.max}"
        return Rejected(model.id, reason, frames, limits.max, "frames")
    return replace(clip, frames=limits.nearest(frames))


def _video(
    machine: Machine, model: VideoModel, calibration: Calibration, length: Length
) -> Option | Rejected:
    clip = _clip(model, length)
    if isinstance(clip, Rejected):
        return clip
    question = VideoQuestion(model, clip)
    outcome = evaluate(question, machine, calibration)
    if not isinstance(outcome, Candidate):
        return replace(outcome, name=model.id)
    note = "; ".join(f"not with Filmgate: {reason}" for reason in question.unsupported())
    return replace(video_option(outcome, rank=0), name=model.id, note=note)


def _llm(machine: Machine, model: Llm, calibration: Calibration) -> Option | Rejected:
    """The highest precision that fits; a rejection is that of the lowest precision."""
    released = BITS_PER_VALUE[model.native_precision]
    lower = [precision for precision in ("fp8", "int4") if BITS_PER_VALUE[precision] < released]
    for precision in (model.native_precision, *lower):
        outcome = evaluate_llm(LlmQuestion(model, precision, context=CONTEXT), machine, calibration)
        if isinstance(outcome, LlmCandidate):
            placement = f"{precision}, {counted(outcome.serving.gpus, 'GPU')}"
            option = llm_option(outcome, rank=0)
            return replace(option, name=model.id, usd_per_day=None, placement=placement)
        rejected = replace(outcome, name=model.id, reason=f"{outcome.reason} (weights in {precision})")
    return rejected
