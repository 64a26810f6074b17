"""Options that several questions share, and the catalog they open."""

import re
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated

import typer

from filmgate.catalog.book import Catalog
from filmgate.catalog.folders import read_video_folder
from filmgate.catalog.gpus import Gpu
from filmgate.catalog.huggingface import read_llm_config
from filmgate.catalog.library import load_catalog, read_prices
from filmgate.catalog.llms import BITS, Llm
from filmgate.catalog.user import with_user_file
from filmgate.catalog.video_models import VideoModel
from filmgate.errors import UsageError
from filmgate.planner.traffic import Shape
from filmgate.settings import load_settings

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
Adr = Annotated[Path | None, typer.Option("--adr", help="Write an architecture decision record (Markdown).")]
Html = Annotated[Path | None, typer.Option("--html", help="Write a self-contained report page.")]
Region = Annotated[str | None, typer.Option("--region", help="AWS region; default from settings.")]
GpuName = Annotated[str | None, typer.Option("--gpu", help="A bare GPU instead of an instance, e.g. H100.")]
UserFile = Annotated[
    Path | None, typer.Option("--catalog", help="TOML with your own GPUs, instances, prices and models.")
]
PriceFile = Annotated[Path | None, typer.Option("--prices", help="CSV written by `filmgate plan prices`.")]
VideoModelName = Annotated[
    str, typer.Option("--model", help="A model of the catalog, or a diffusers folder.")
]
LlmName = Annotated[
    str, typer.Option("--model", help="A model of the catalog, or a Hugging Face config.json.")
]
Size = Annotated[str | None, typer.Option("--size", help="WIDTHxHEIGHT, e.g. 1280x720.")]
Seconds = Annotated[float | None, typer.Option("--seconds", help="Length of the clip.")]
Frames = Annotated[int | None, typer.Option("--frames", help="Length in frames, instead of --seconds.")]
Steps = Annotated[int | None, typer.Option("--steps", help="Denoising steps.")]
Fps = Annotated[float | None, typer.Option("--fps", help="Frames a second.")]
ClipsPerDay = Annotated[float | None, typer.Option("--clips-per-day", help="Volume.")]
SloSeconds = Annotated[float | None, typer.Option("--slo-seconds", help="p95 from request to clip.")]
TrafficShape = Annotated[Shape, typer.Option("--traffic", help="When clips arrive.")]
Compiled = Annotated[bool, typer.Option("--compiled", help="Operators fused by torch.compile.")]
Tenants = Annotated[int, typer.Option("--tenants", min=1, help="Tenants to keep apart.")]
Adapters = Annotated[int, typer.Option("--adapters", min=1, help="Adapters on one base model.")]
Discount = Annotated[float | None, typer.Option("--commit-discount", help="Share off for a commitment.")]
Interruptible = Annotated[float, typer.Option("--interruptible", help="Share of the work fit for spot.")]
SafetyFactor = Annotated[float, typer.Option("--safety-factor", help="On memory that is estimated.")]
Residency = Annotated[str | None, typer.Option("--residency", help="Data must stay in: EU, US, UK ...")]
Precision = Annotated[str, typer.Option("--precision", help="Weights: bf16, fp8, int4, mxfp4 ...")]


def today() -> date:
    return datetime.now(UTC).date()


def open_catalog(user_file: Path | None, price_file: Path | None) -> Catalog:
    """The shipped catalog with the user's prices and entries over it; options win over settings."""
    settings = load_settings().planner
    catalog = load_catalog()
    prices = price_file or (Path(settings.prices_file) if settings.prices_file else None)
    if prices:
        catalog = catalog.with_entries(prices=read_prices(prices))
    entries = user_file or (Path(settings.catalog_file) if settings.catalog_file else None)
    return with_user_file(catalog, entries) if entries else catalog


def region_or_default(region: str | None, catalog: Catalog) -> str:
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


def parse_size(size: str | None) -> tuple[int | None, int | None]:
    if size is None:
        return None, None
    found = re.fullmatch(r"(\d{1,5})[xX](\d{1,5})", size.strip())
    if not found:
        raise UsageError(f"{size!r} is not WIDTHxHEIGHT, e.g. 1280x720", option="--size")
    return int(found[1]), int(found[2])


def check_positive(value: float | None, option: str, *, is_zero_allowed: bool = False) -> None:
    """A number that must be more than nothing; says so with the option's name."""
    if value is None or value > 0 or (is_zero_allowed and value == 0):
        return
    raise UsageError(
        f"{value:g} makes no sense; give a {'number from 0' if is_zero_allowed else 'positive number'}",
        option=option,
    )


def check_precision(precision: str, allowed: tuple[str, ...] = tuple(BITS)) -> None:
    if precision not in allowed:
        raise UsageError(f"{precision!r} is not known; use {', '.join(allowed)}", option="--precision")


def check_share(value: float | None, option: str) -> None:
    if value is not None and not 0 <= value < 1:
        raise UsageError(f"{value:g} is not a share from 0 to 1", option=option)
