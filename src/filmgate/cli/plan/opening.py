"""Opens what a question names: the catalog, a model, a region, a clip; and refuses numbers that cannot be."""

from datetime import UTC, date, datetime
from difflib import get_close_matches
from pathlib import Path

from filmgate.catalog.catalog import Catalog
from filmgate.catalog.diffusers_folder import read_video_folder
from filmgate.catalog.gpus import Gpu
from filmgate.catalog.huggingface import read_llm_config
from filmgate.catalog.llms import Llm
from filmgate.catalog.loader import load_catalog, read_prices
from filmgate.catalog.precisions import BITS_PER_VALUE
from filmgate.catalog.user_file import with_user_file
from filmgate.catalog.video_models import VideoModel
from filmgate.errors import UsageError
from filmgate.jobs import Size
from filmgate.planner.fleet.traffic import DAY_SECONDS
from filmgate.planner.video.candidates import VideoAsk
from filmgate.planner.video.work import Clip, clip_for


def today() -> date:
    return datetime.now(UTC).date()


def open_catalog(user_file: Path | None, price_file: Path | None) -> Catalog:
    """The shipped catalog with the user's prices and entries over it; options win over settings."""
    from filmgate.settings import load_settings

    settings = load_settings().planner
    catalog = load_catalog()
    prices = price_file or (Path(settings.prices_file) if settings.prices_file else None)
    if prices:
        catalog = catalog.with_entries(prices=read_prices(prices))
    entries = user_file or (Path(settings.catalog_file) if settings.catalog_file else None)
    return with_user_file(catalog, entries) if entries else catalog


def region_or_default(region: str | None, catalog: Catalog) -> str:
    from filmgate.settings import load_settings

    return catalog.region(region or load_settings().planner.region).name


def gpu_or_none(name: str | None, catalog: Catalog) -> Gpu | None:
    return catalog.gpu(name) if name else None


def find_video_model(name: str, catalog: Catalog) -> VideoModel:
    """A catalog model, or the one in a diffusers folder."""
    folder = Path(name)
    if (folder / "model_index.json").exists():
        return read_video_folder(folder, catalog.video_models, today().isoformat())
    return catalog.video_model(name)


def find_llm(name: str, catalog: Catalog) -> Llm:
    """A catalog model, or the one a config.json describes."""
    path = Path(name)
    if path.suffix == ".json" or (path / "config.json").exists():
        return read_llm_config(path if path.suffix == ".json" else path / "config.json", today().isoformat())
    return catalog.llm(name)


def check_positive(value: float | None, option: str, *, is_zero_allowed: bool = False) -> None:
    """A number that must be more than nothing; says so with the option's name."""
    if value is None or value > 0 or (is_zero_allowed and value == 0):
        return
    raise UsageError(
        f"{value:g} makes no sense; give a {'number from 0' if is_zero_allowed else 'positive number'}",
        option=option,
    )


def check_precision(
    precision: str, allowed: tuple[str, ...] = tuple(BITS_PER_VALUE), option: str = "--precision"
) -> str:
    if precision not in allowed:
        raise UsageError(f"{precision!r} is not known; use {', '.join(allowed)}", option=option)
    return precision


def machine_names(text: str | None, option: str) -> tuple[str, ...]:
    """Instances or GPUs, separated by commas; none where the option is not given."""
    names = tuple(name.strip() for name in (text or "").split(",") if name.strip())
    if text is not None and not names:
        raise UsageError("name at least one, e.g. g6e.24xlarge,g7e.12xlarge or H100,H200", option=option)
    return names


def one_machine(instance: str | None, gpu: str | None, catalog: Catalog) -> tuple[str | None, Gpu | None]:
    """The instance's name or the bare GPU: exactly one of them."""
    if (instance is None) == (gpu is None):
        raise UsageError("give --instance or --gpu, one of them", option="--instance")
    return catalog.instance(instance).name if instance else None, gpu_or_none(gpu, catalog)


def requests_a_day(per_day: float | None, per_second: float | None) -> float | None:
    """The volume, given either way; None where none is."""
    if per_day is not None and per_second is not None:
        raise UsageError("give --requests-per-day or --requests-per-second", option="--requests-per-day")
    return per_second * DAY_SECONDS if per_second is not None else per_day


def check_share(value: float | None, option: str) -> None:
    if value is not None and not 0 <= value < 1:
        raise UsageError(f"{value:g} is not a share from 0 to 1", option=option)


def check_length(**asked: float | None) -> None:
    """Positive numbers; seconds and frames exclude each other."""
    if asked.get("seconds") is not None and asked.get("frames") is not None:
        raise UsageError("give --seconds or --frames, not both", option="--frames")
    for name, value in asked.items():
        check_positive(value, f"--{name}")


def build_clip(model: VideoModel, size: str | None, **asked: float | None) -> Clip:
    """The clip asked for."""
    check_length(**asked)
    width, height = Size.parse(size.strip()) if size is not None else (None, None)
    return clip_for(model, width=width, height=height, **asked)


def check_numbers(ask: VideoAsk) -> None:
    """Every number of the question is one that can be."""
    check_positive(ask.clips_per_day, "--clips-per-day")
    check_positive(ask.slo_seconds, "--slo-seconds")
    check_positive(ask.safety_factor, "--safety-factor")
    check_share(ask.commit_discount, "--commit-discount")
    check_share(ask.interruptible_share, "--interruptible")


def is_video(name: str, catalog: Catalog) -> bool:
    """A folder or name of a video model; a name of neither kind is looked up among both for near ones."""
    if (Path(name) / "model_index.json").exists() or name.lower() in catalog.video_models:
        return True
    if name.lower() in catalog.llms or name.endswith(".json") or (Path(name) / "config.json").exists():
        return False
    near = get_close_matches(name.lower(), [*catalog.video_models, *catalog.llms], n=3, cutoff=0.4)
    hint = f"near names: {', '.join(near)}" if near else "`filmgate plan fit` lists every model"
    raise UsageError(f"{name!r} is not in the catalog; {hint}", option="--model")
