"""`filmgate plan video`: machines, fleet and cost for rendering clips."""

from typing import TYPE_CHECKING, Any

from filmgate.cli.plan import options
from filmgate.cli.plan.command import Facts
from filmgate.jobs import Size
from filmgate.planner.fleet.tenancy import Tenancy

if TYPE_CHECKING:
    from filmgate.planner.answer import Answer
    from filmgate.planner.video.question import VideoQuestion

WEIGHTS = ("bf16", "int8", "fp8")


def video_question(  # noqa: PLR0913 - one parameter per option
    facts: Facts,
    *,
    model: options.VideoModelName,
    size: options.Size = None,
    seconds: options.Seconds = None,
    frames: options.Frames = None,
    steps: options.Steps = None,
    quality: options.Quality = "full",
    fps: options.Fps = None,
    clips_per_day: options.ClipsPerDay = None,
    slo_seconds: options.SloSeconds = None,
    traffic: options.Traffic = None,
    precision: options.Precision = None,
    compiled: options.Compiled = None,
    flash: options.Flash = False,
    adapters: options.Adapters = 1,
    tenants: options.Tenants = 1,
    isolation: options.TenantHardware = Tenancy.SHARED,
    spare_machines: options.SpareMachines = 1,
    arrivals: options.ArrivalsFile = None,
    residency: options.Residency = None,
    commit_discount: options.Discount = None,
    commit_years: options.CommitYears = 1,
    interruptible: options.Interruptible = 0.0,
    interruptions_per_day: options.Interruptions = 1.0,
    safety_factor: options.SafetyFactor = 1.2,
    budget_margin: options.BudgetMargin = 1.0,
    gpu: options.GpuName = None,
) -> "VideoQuestion":
    """The question that these options ask. Raises UsageError."""
    from filmgate.cli.plan import inputs
    from filmgate.planner.video.clip import clip_for
    from filmgate.planner.video.question import VideoQuestion

    found = inputs.find_video_model(model, facts.catalog)
    shape: dict[str, Any] = {"seconds": seconds, "frames": frames, "fps": fps, "steps": steps}
    pixels = Size.parse(size.strip()) if size is not None else None
    inputs.check_length(seconds, frames)
    inputs.check_positive(slo_seconds=slo_seconds)
    inputs.check_factors(safety_factor=safety_factor, budget_margin=budget_margin)
    return VideoQuestion(
        model=found,
        clip=clip_for(found, size=pixels, quality=quality, **shape),
        region=facts.region,
        traffic=inputs.clip_traffic(clips_per_day, traffic, arrivals),
        slo_seconds=slo_seconds,
        precision=inputs.check_precision(precision or "bf16", WEIGHTS),
        mode=None if compiled is None else "compiled" if compiled else "eager",
        gpu=facts.catalog.gpu(gpu) if gpu else None,
        residency=inputs.parse_residency(residency, facts.catalog),
        terms=inputs.to_terms(commit_discount, commit_years, interruptible, interruptions_per_day),
        has_flash=flash,
        adapters=adapters,
        tenants=tenants,
        tenancy=isolation,
        spare_machines=spare_machines,
        safety_factor=safety_factor,
        budget_margin=budget_margin,
    )


def answer_video(facts: Facts, **given: Any) -> "Answer":
    """Plan hardware for rendering clips: memory, time, fleet and cost."""
    from filmgate.planner.video.answer import plan_video

    return plan_video(video_question(facts, **given), facts.catalog, facts.calibration)
