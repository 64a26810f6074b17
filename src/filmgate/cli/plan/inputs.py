"""Turns option values into planner inputs, and rejects values that are out of range."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, date, datetime
from difflib import get_close_matches
from importlib.util import find_spec
from math import inf, isfinite
from pathlib import Path

from filmgate.catalog.catalog import Catalog
from filmgate.catalog.diffusers_folder import read_video_folder
from filmgate.catalog.gpus import Gpu
from filmgate.catalog.huggingface import read_llm_config
from filmgate.catalog.llms import Llm
from filmgate.catalog.loader import load_catalog, read_prices
from filmgate.catalog.names import find_known_model
from filmgate.catalog.precisions import BITS_PER_VALUE
from filmgate.catalog.records import read_text
from filmgate.catalog.user_file import with_user_file
from filmgate.catalog.video_models import VideoModel
from filmgate.errors import UsageError
from filmgate.models.names import SHIPPED, shipped_folder
from filmgate.planner.fleet.money import YEARS, Terms
from filmgate.planner.fleet.traffic import (
    SECONDS_PER_DAY,
    Traffic,
    TrafficShape,
    recorded_traffic,
    traffic_of,
)

MIN_ARRIVALS = 10
LAWS = {"GDPR": "EU", "LGPD": "BR"}
"""Names of data-protection laws, and the jurisdiction of each."""


def today() -> date:
    return datetime.now(UTC).date()


def open_catalog(user_file: Path | None, price_file: Path | None) -> Catalog:
    """The shipped catalog with the user's prices and entries. Options override settings."""
    from filmgate.settings import load_settings

    settings = load_settings().planner
    catalog = load_catalog()
    prices = price_file or (Path(settings.prices_file) if settings.prices_file else None)
    if prices:
        catalog = catalog.with_entries(prices=read_prices(prices))
    entries = user_file or (Path(settings.catalog_file) if settings.catalog_file else None)
    return with_user_file(catalog, entries) if entries else catalog


def find_video_model(name: str, catalog: Catalog) -> VideoModel:
    """A catalog model, the model in a diffusers folder, or a model in the package."""
    folder = shipped_folder(name) if name in SHIPPED else Path(name)
    if not folder.exists() and not find_known_model(name):
        folder = cached_folder(name, "model_index.json") or folder
    if (folder / "model_index.json").exists():
        return read_video_folder(folder, catalog.video_models, today().isoformat())
    return catalog.video_model(name)


def find_llm(name: str, catalog: Catalog) -> Llm:
    """A catalog model, or the model that a config.json describes."""
    path = Path(name)
    if path.suffix == ".json" or (path / "config.json").exists():
        return read_llm_config(path if path.suffix == ".json" else path / "config.json", today().isoformat())
    if catalog.find_llm(name) is None and (folder := cached_folder(name, "config.json")):
        return replace(read_llm_config(folder / "config.json", today().isoformat()), id=name, name=name)
    return catalog.llm(name)


def cached_folder(name: str, file: str) -> Path | None:
    """The folder of a model in the cache of the Hugging Face hub. Nothing is downloaded."""
    if name.count("/") != 1 or find_spec("huggingface_hub") is None:
        return None
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(name, file)
    except HFValidationError:
        return None  # a path, not a hub id
    return Path(found).parent if isinstance(found, str) else None


def is_video(name: str, catalog: Catalog) -> bool:
    """Whether this is a video model, not a language model. Raises UsageError for an unknown name."""
    if name in SHIPPED or catalog.find_video_model(name) or (Path(name) / "model_index.json").exists():
        return True
    if cached_folder(name, "model_index.json"):
        return True
    if catalog.find_llm(name) or name.endswith(".json") or (Path(name) / "config.json").exists():
        return False
    if cached_folder(name, "config.json"):
        return False
    similar = get_close_matches(name.lower(), [*catalog.video_models, *catalog.llms], n=3, cutoff=0.4)
    hint = (
        f"similar names: {', '.join(similar)}"
        if similar
        else "`filmgate plan fit --gpu H200` lists every model"
    )
    raise UsageError(f"{name!r} is not in the catalog; {hint}", option="--model")


def check_positive(**options: float | None) -> None:
    """Raises UsageError for an option that is given and not positive."""
    _check(options, lambda value: 0 < value < inf, "must be a positive number")


def check_factors(**options: float | None) -> None:
    _check(options, lambda value: 1 <= value < inf, "must be at least 1")


def _check(options: Mapping[str, float | None], is_valid: Callable[[float], bool], rule: str) -> None:
    """NaN is in no range."""
    for name, value in options.items():
        if value is not None and not is_valid(value):
            raise UsageError(f"{rule}, got {value:g}", option=f"--{name.replace('_', '-')}")


def to_terms(
    commit_discount: float | None,
    commit_years: int,
    interruptible: float = 0.0,
    interruptions_per_day: float = 1.0,
) -> Terms:
    """How machines are bought. Raises UsageError."""
    shares = {"commit_discount": commit_discount, "interruptible": interruptible}
    _check(shares, lambda value: 0 <= value < 1, "must be a share of at least 0 and less than 1")
    check_positive(interruptions_per_day=interruptions_per_day)
    if commit_years not in YEARS:
        message = f"a Savings Plan has a term of 1 or 3 years, got {commit_years}"
        raise UsageError(message, option="--commit-years")
    return Terms(commit_discount, interruptible, commit_years, interruptions_per_day)


def check_precision(
    precision: str, allowed: tuple[str, ...] = tuple(BITS_PER_VALUE), option: str = "--precision"
) -> str:
    if precision not in allowed:
        raise UsageError(f"unknown precision {precision!r}; use {', '.join(allowed)}", option=option)
    return precision


def check_length(seconds: float | None, frames: int | None) -> None:
    """Raises UsageError unless both are positive numbers, and for both together."""
    if seconds is not None and frames is not None:
        raise UsageError("give --seconds or --frames, not both", option="--frames")
    check_positive(seconds=seconds, frames=frames)


def parse_residency(text: str | None, catalog: Catalog) -> str | None:
    """The jurisdiction that a code (EU) or a law (GDPR) names. Raises UsageError for an unknown one."""
    if text is None:
        return None
    jurisdiction = LAWS.get(text.strip().upper(), text.strip().upper())
    known = sorted({region.jurisdiction for region in catalog.regions.values()})
    if jurisdiction not in known:
        raise UsageError(
            f"unknown jurisdiction {text!r}; use {', '.join([*LAWS, *known])}", option="--residency"
        )
    return jurisdiction


def check_tokens(context: int, answer_tokens: int, cached_tokens: int = 0) -> None:
    if answer_tokens >= context:
        raise UsageError(
            f"an answer of {answer_tokens} tokens leaves no prompt in a context of {context}; give a longer "
            "--context or fewer tokens",
            option="--answer-tokens",
        )
    if cached_tokens >= context - answer_tokens:
        raise UsageError(
            f"a prompt has {context - answer_tokens} tokens, {cached_tokens} of them cannot be cached",
            option="--cached-tokens",
        )


def clip_traffic(
    clips_per_day: float | None, shape: TrafficShape | None, arrivals: Path | None
) -> Traffic | None:
    """The traffic that these options describe; None without a volume. Raises UsageError."""
    if arrivals is None:
        check_positive(clips_per_day=clips_per_day)
        return _traffic(clips_per_day, shape, "--clips-per-day")
    for option, value in (("--clips-per-day", clips_per_day), ("--traffic", shape)):
        if value is not None:
            raise UsageError(f"give --arrivals or {option}, not both", option="--arrivals")
    return recorded_traffic(read_arrivals(arrivals))


def _traffic(per_day: float | None, shape: TrafficShape | None, volume_option: str) -> Traffic | None:
    if per_day is None and shape is not None:
        raise UsageError(f"has no effect without a volume; give {volume_option} too", option="--traffic")
    return traffic_of(per_day, shape) if per_day is not None else None


def read_arrivals(path: Path) -> list[float]:
    """Arrival times in seconds, in any order. Raises UsageError."""
    times = []
    for number, line in enumerate(read_text(path, "--arrivals").splitlines(), start=1):
        cell = line.partition(",")[0].strip()
        value = _seconds(cell)
        if value is not None:
            times.append(value)
        elif cell and number > 1:  # the first line may be a header
            raise UsageError(
                f"line {number}: {cell!r} is neither seconds nor an ISO 8601 time", option="--arrivals"
            )
    if len(times) < MIN_ARRIVALS:
        raise UsageError(f"{path} has {len(times)} arrivals, needs {MIN_ARRIVALS}", option="--arrivals")
    return times


def _seconds(cell: str) -> float | None:
    """Seconds, or an ISO 8601 time as seconds; None for other text."""
    try:
        value = float(cell)
    except ValueError:
        try:
            value = datetime.fromisoformat(cell).timestamp()
        except ValueError:
            return None
    return value if isfinite(value) else None


def machine_names(text: str | None, option: str) -> tuple[str, ...]:
    """A comma-separated list of instance types or GPUs; empty if the option is not given."""
    names = tuple(name.strip() for name in (text or "").split(",") if name.strip())
    if text is not None and not names:
        raise UsageError("give at least one name, e.g. g6e.24xlarge,g7e.12xlarge or H100,H200", option=option)
    return names


def one_machine(instance: str | None, gpu: str | None, catalog: Catalog) -> tuple[str | None, Gpu | None]:
    """The name of the instance type, or the bare GPU. Raises UsageError unless exactly one is given."""
    if (instance is None) == (gpu is None):
        raise UsageError("give either --instance or --gpu", option="--instance")
    return catalog.instance(instance).name if instance else None, catalog.gpu(gpu) if gpu else None


def request_traffic(
    per_day: float | None, per_second: float | None, shape: TrafficShape | None
) -> Traffic | None:
    """The traffic that these options describe; None without a volume. Raises UsageError."""
    check_positive(requests_per_day=per_day, requests_per_second=per_second)
    if per_day is not None and per_second is not None:
        raise UsageError(
            "give --requests-per-day or --requests-per-second, not both", option="--requests-per-day"
        )
    volume = per_second * SECONDS_PER_DAY if per_second is not None else per_day
    return _traffic(volume, shape, "--requests-per-day")
