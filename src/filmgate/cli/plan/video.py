"""`filmgate plan video`: a clip of this model, this size and length, so many a day, in so many seconds."""

from filmgate.cli.plan import options
from filmgate.planner.traffic import Shape

WEIGHTS = ("bf16", "fp8")


def plan_video_command(  # noqa: PLR0913 - one parameter an option
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
    precision: options.Precision = "bf16",
    compiled: options.Compiled = False,
    tenants: options.Tenants = 1,
    adapters: options.Adapters = 1,
    residency: options.Residency = None,
    commit_discount: options.Discount = None,
    interruptible: options.Interruptible = 0.0,
    safety_factor: options.SafetyFactor = 1.2,
    gpu: options.GpuName = None,
    region: options.Region = None,
    catalog_file: options.UserFile = None,
    price_file: options.PriceFile = None,
    is_json: options.Json = False,
    adr: options.Adr = None,
    html: options.Html = None,
) -> None:
    """Memory, time, fleet, money and a verdict for making clips."""
    from filmgate.catalog.library import load_calibration
    from filmgate.cli.plan import opening
    from filmgate.cli.plan.output import show
    from filmgate.planner.video import VideoAsk
    from filmgate.planner.video_answer import plan_video

    catalog = opening.open_catalog(catalog_file, price_file)
    found = opening.find_video_model(model, catalog)
    clip = opening.build_clip(found, size, seconds=seconds, frames=frames, steps=steps, fps=fps)
    opening.check_precision(precision, WEIGHTS)
    ask = VideoAsk(
        model=found,
        clip=clip,
        region=opening.region_or_default(region, catalog),
        clips_per_day=clips_per_day,
        slo_seconds=slo_seconds,
        shape=traffic,
        precision=precision,
        mode="compiled" if compiled else "eager",
        gpu=opening.gpu_or_none(gpu, catalog),
        residency=residency,
        commit_discount=commit_discount,
        interruptible_share=interruptible,
        tenants=tenants,
        adapters=adapters,
        safety_factor=safety_factor,
    )
    opening.check_numbers(ask)
    show(plan_video(ask, catalog, load_calibration()), is_json=is_json, adr=adr, html=html)
