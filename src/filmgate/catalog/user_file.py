"""A user's own GPUs, instances, prices and models, from one TOML file."""

import tomllib
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from filmgate.catalog.catalog import Catalog
from filmgate.catalog.gpus import Gpu
from filmgate.catalog.instances import Instance, Price
from filmgate.catalog.llms import Llm
from filmgate.catalog.loader import gpu_of
from filmgate.catalog.records import to_record
from filmgate.catalog.video_models import Defaults, Denoiser, VideoModel
from filmgate.errors import UsageError

SECTIONS = ("gpus", "instances", "prices", "llms", "video_models")
Row = Mapping[str, Any]


def with_user_file(catalog: Catalog, path: Path) -> Catalog:
    """The catalog with the file's entries over the shipped ones; every entry needs `as_of`."""
    try:
        tree = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
        raise UsageError(f"{path} cannot be read: {exc}", option="--catalog") from exc
    unknown = tree.keys() - set(SECTIONS)
    if unknown:
        names = ", ".join(sorted(unknown))
        raise UsageError(f"{path}: unknown section {names}; known: {', '.join(SECTIONS)}", option="--catalog")
    origin = {"source": f"user file {path.name}"}
    gpus = [_gpu(name, origin | row) for name, row in tree.get("gpus", {}).items()]
    wider = catalog.with_entries(gpus=gpus)
    return wider.with_entries(
        instances=[_instance(name, origin | row, wider) for name, row in tree.get("instances", {}).items()],
        prices=[to_record(Price, origin | row, f"{path.name} prices") for row in tree.get("prices", [])],
        llms=[
            to_record(Llm, {"id": name, "name": name} | origin | row, f"llm {name}")
            for name, row in tree.get("llms", {}).items()
        ],
        video_models=[
            _video_model(name, origin | row, wider) for name, row in tree.get("video_models", {}).items()
        ],
    )


def _gpu(name: str, row: Row) -> Gpu:
    return gpu_of(name, {"product": name} | dict(row))


def _instance(name: str, row: Row, catalog: Catalog) -> Instance:
    gpu = catalog.gpu(str(row.get("gpu", "")))
    given = {"name": name, "status": "on-demand", "gpu_count": 1, "gpu_mib": gpu.memory_mib} | dict(row)
    return to_record(Instance, given | {"gpu": gpu.name}, f"instance {name}")


def _video_model(name: str, row: Row, catalog: Catalog) -> VideoModel:
    """A variant of a known model: `base`, then any of its fields, nested ones in their own table."""
    if "base" not in row:
        raise UsageError(
            f"video model {name}: base is missing; name the catalog model it resembles", option="--catalog"
        )
    if "as_of" not in row:
        raise UsageError(
            f"video model {name}: as_of is missing; write the date of the facts", option="--catalog"
        )
    base = catalog.video_model(str(row["base"]))
    plain = {k: v for k, v in row.items() if k not in ("base", "denoiser", "defaults")}
    allowed = {field.name for field in fields(VideoModel)} - {"vae", "text_encoders"}
    for key in plain.keys() - allowed:
        raise UsageError(
            f"video model {name}: unknown key {key}; known: {', '.join(sorted(allowed))}", option="--catalog"
        )
    return replace(
        base,
        **{"name": name, **plain, "id": name},
        denoiser=_changed(base.denoiser, Denoiser, row.get("denoiser", {}), name),
        defaults=_changed(base.defaults, Defaults, row.get("defaults", {}), name),
    )


def _changed(base: Any, kind: type[Any], row: Row, name: str) -> Any:
    current = {field.name: getattr(base, field.name) for field in fields(kind)}
    return to_record(kind, current | dict(row), f"video model {name}")
