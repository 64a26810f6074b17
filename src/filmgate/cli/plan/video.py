"""`filmgate plan video`: a clip of this model, this size and length, so many a day, in so many seconds."""

from filmgate.catalog.library import load_calibration
from filmgate.catalog.video_models import VideoModel
from filmgate.cli.plan import options
from filmgate.cli.plan.output import show
from filmgate.errors import UsageError
from filmgate.planner.traffic import Shape
from filmgate.planner.video import VideoAsk
from filmgate.planner.video_answer import plan_video
from filmgate.planner.work import Clip, clip_for

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
    catalog = options.open_catalog(catalog_file, price_file)
    found = options.find_video_model(model, catalog)
    clip = build_clip(found, size, seconds=seconds, frames=frames, steps=steps, fps=fps)
    options.check_precision(precision, WEIGHTS)
    ask = VideoAsk(
        model=found,
        clip=clip,
        region=options.region_or_default(region, catalog),
        clips_per_day=clips_per_day,
        slo_seconds=slo_seconds,
        shape=traffic,
        precision=precision,
        mode="compiled" if compiled else "eager",
        gpu=options.gpu_or_none(gpu, catalog),
        residency=residency,
        commit_discount=commit_discount,
        interruptible_share=interruptible,
        tenants=tenants,
        adapters=adapters,
        safety_factor=safety_factor,
    )
    check_numbers(ask)
    show(plan_video(ask, catalog, load_calibration()), is_json=is_json, adr=adr, html=html)


def build_clip(model: VideoModel, size: str | None, **asked: float | None) -> Clip:
    """The clip asked for; seconds and frames exclude each other."""
    if asked.get("seconds") is not None and asked.get("frames") is not None:
        raise UsageError("give --seconds or --frames, not both", option="--frames")
    for name, value in asked.items():
        options.check_positive(value, f"--{name}")
    width, height = options.parse_size(size)
    return clip_for(model, width=width, height=height, **asked)


def check_numbers(ask: VideoAsk) -> None:
    """Every number of the question is one that can be."""
    options.check_positive(ask.clips_per_day, "--clips-per-day")
    options.check_positive(ask.slo_seconds, "--slo-seconds")
    options.check_positive(ask.safety_factor, "--safety-factor")
    options.check_share(ask.commit_discount, "--commit-discount")
    options.check_share(ask.interruptible_share, "--interruptible")
