"""`filmgate plan video`: a clip of this model, this size and length, so many a day, in so many seconds."""

from typing import TYPE_CHECKING, Any

from filmgate.cli.plan import options
from filmgate.cli.plan.question import Ground
from filmgate.planner.fleet.traffic import Shape

if TYPE_CHECKING:
    from filmgate.planner.answer import Answer
    from filmgate.planner.video.candidates import VideoAsk

WEIGHTS = ("bf16", "fp8")


def ask_video(  # noqa: PLR0913 - one parameter an option
    ground: Ground,
    *,
    model: options.VideoModelName,
    size: options.Size = None,
    seconds: options.Seconds = None,
    frames: options.Frames = None,
    steps: options.Steps = None,
    fps: options.Fps = None,
    clips_per_day: options.ClipsPerDay = None,
    slo_seconds: options.SloSeconds = None,
    traffic: options.TrafficShape = Shape.STEADY,
    precision: options.Precision = None,
    compiled: options.Compiled = False,
    tenants: options.Tenants = 1,
    adapters: options.Adapters = 1,
    residency: options.Residency = None,
    commit_discount: options.Discount = None,
    interruptible: options.Interruptible = 0.0,
    safety_factor: options.SafetyFactor = 1.2,
    gpu: options.GpuName = None,
) -> "VideoAsk":
    """The question these options put; raises UsageError for one that cannot be put."""
    from filmgate.cli.plan import opening
    from filmgate.planner.video.candidates import VideoAsk

    found = opening.find_video_model(model, ground.catalog)
    clip = opening.build_clip(found, size, seconds=seconds, frames=frames, steps=steps, fps=fps)
    ask = VideoAsk(
        model=found,
        clip=clip,
        region=ground.region,
        clips_per_day=clips_per_day,
        slo_seconds=slo_seconds,
        shape=traffic,
        precision=opening.check_precision(precision or "bf16", WEIGHTS),
        mode="compiled" if compiled else "eager",
        gpu=opening.gpu_or_none(gpu, ground.catalog),
        residency=residency,
        commit_discount=commit_discount,
        interruptible_share=interruptible,
        tenants=tenants,
        adapters=adapters,
        safety_factor=safety_factor,
    )
    opening.check_numbers(ask)
    return ask


def answer_video(ground: Ground, **asked: Any) -> "Answer":
    """Memory, time, fleet, money and a verdict for making clips."""
    from filmgate.planner.video.answer import plan_video

    return plan_video(ask_video(ground, **asked), ground.catalog, ground.calibration)
