"""What fits on what I have: every model of the catalog at its default shape, on one machine."""

import math
from dataclasses import dataclass, replace

from filmgate.catalog.calibrations import Calibration
from filmgate.catalog.catalog import Catalog
from filmgate.catalog.gpus import Gpu
from filmgate.catalog.video_models import VideoModel
from filmgate.planner.answer import Answer, Option, Rejected
from filmgate.planner.llm.serving import LlmAsk, LlmCandidate, evaluate_llm
from filmgate.planner.machines import Machine, machines_for
from filmgate.planner.video.candidates import Candidate, VideoAsk, evaluate, spread
from filmgate.planner.video.memory import GIB
from filmgate.planner.video.work import clip_for

CONTEXT = 8192


@dataclass(frozen=True, slots=True)
class Length:
    """How long the clips are; None is each model's default."""

    seconds: float | None = None
    frames: int | None = None


NO_LENGTH = Length()


def plan_fit(
    catalog: Catalog,
    calibration: Calibration,
    region: str,
    *,
    gpu: Gpu | None = None,
    instance: str | None = None,
    length: Length = NO_LENGTH,
) -> Answer:
    """Models that fit, quickest first, and by how much the others miss."""
    machines, refused = machines_for(catalog, region, gpu=gpu, names=[instance] if instance else [])
    name = instance or (gpu.name if gpu else region)
    question = f"what fits on {name}"
    if not machines:
        reason = refused[0].reason if refused else "unknown"
        verdict = f"Nothing runs on {name}: {reason}."
        return Answer(question, "clip", verdict, False, None, None, None, None, (), tuple(refused), ())
    machine = machines[0]
    videos = [_video(machine, catalog.video_models[key], calibration, length) for key in catalog.video_models]
    llms = [_llm(machine, key, catalog, calibration) for key in catalog.llms]
    options = sorted((o for o in videos if isinstance(o, Option)), key=lambda o: o.seconds)
    options += sorted((o for o in llms if isinstance(o, Option)), key=lambda o: o.peak_bytes)
    ranked = tuple(_at(place, option) for place, option in enumerate(options, start=1))
    rejected = tuple(o for o in videos + llms if isinstance(o, Rejected))
    memory = machine.gpu.memory_bytes / GIB
    counts = f"{sum(isinstance(o, Option) for o in videos)} of {len(videos)} video models and "
    counts += f"{sum(isinstance(o, Option) for o in llms)} of {len(llms)} language models fit"
    verdict = (
        f"{machine.name} ({machine.gpus} x {machine.gpu.name}, {memory:.1f} GiB): {counts} at their defaults."
    )
    sources = (f"GPU {machine.gpu.name}: {machine.gpu.source} ({machine.gpu.as_of})",)
    return Answer(question, "clip", verdict, bool(ranked), None, None, None, None, ranked, rejected, sources)


def _at(place: int, option: Option) -> Option:
    return replace(option, rank=place)


def _video(
    machine: Machine, model: VideoModel, calibration: Calibration, length: Length
) -> Option | Rejected:
    key = model.id
    ask = VideoAsk(model, clip_for(model, seconds=length.seconds, frames=_whole_frames(model, length.frames)))
    outcome = evaluate(ask, machine, calibration)
    if not isinstance(outcome, Candidate):
        return Rejected(key, outcome.reason, outcome.number, outcome.limit, outcome.unit)
    half, _ = spread(machine.gpu, calibration)
    return Option(
        rank=0,
        name=key,
        gpu=machine.gpu.name,
        gpus_per_replica=outcome.split,
        replicas=machine.gpus // outcome.split,
        instances=1,
        seconds=outcome.seconds,
        low=outcome.seconds * math.exp(-half),
        high=outcome.seconds * math.exp(half),
        latency_p95=outcome.seconds,
        utilisation=1.0,
        usd_per_hour=machine.usd_per_hour,
        usd_per_day=None,
        usd_per_unit=outcome.usd_per_busy_clip,
        placement=outcome.trial.rung,
        peak_bytes=outcome.trial.memory.peak_bytes,
    )


def _whole_frames(model: VideoModel, frames: int | None) -> int | None:
    """The nearest length this model's decoder makes."""
    return None if frames is None else max(1, round((frames - 1) / model.frame_step)) * model.frame_step + 1


def _llm(machine: Machine, key: str, catalog: Catalog, calibration: Calibration) -> Option | Rejected:
    """The widest precision that fits; the rejection is that of the narrowest."""
    model = catalog.llms[key]
    outcome: LlmCandidate | Rejected | None = None
    for precision in dict.fromkeys((model.native_precision, "fp8", "int4")):
        outcome = evaluate_llm(LlmAsk(model, precision, context=CONTEXT), machine, calibration)
        if isinstance(outcome, LlmCandidate):
            break
    if not isinstance(outcome, LlmCandidate):
        assert outcome is not None  # the loop runs at least once
        return Rejected(key, f"{outcome.reason} in int4", outcome.number, outcome.limit, outcome.unit)
    half = calibration.llm_spread
    return Option(
        rank=0,
        name=key,
        gpu=machine.gpu.name,
        gpus_per_replica=outcome.serving.gpus,
        replicas=machine.gpus // outcome.serving.gpus,
        instances=1,
        seconds=outcome.between_tokens,
        low=outcome.between_tokens * math.exp(-half),
        high=outcome.between_tokens * math.exp(half),
        latency_p95=outcome.first_token,
        utilisation=1.0,
        usd_per_hour=machine.usd_per_hour,
        usd_per_day=None,
        usd_per_unit=outcome.usd_per_million,
        placement=f"{outcome.serving.precision}, {CONTEXT} tokens, 1 sequence",
        peak_bytes=outcome.memory.peak_bytes,
    )
