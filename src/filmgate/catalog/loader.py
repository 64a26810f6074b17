"""Reads the shipped data files into a Catalog."""

import csv
import io
import json
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from filmgate.catalog.calibrations import Calibration
from filmgate.catalog.catalog import Catalog
from filmgate.catalog.gpus import Gpu
from filmgate.catalog.instances import Instance, Price, Region
from filmgate.catalog.llms import Llm
from filmgate.catalog.managed import TextApi, VideoApi
from filmgate.catalog.records import to_record
from filmgate.catalog.runs import LlmRun, MeasuredRun, MemoryRun, Runs, VideoRun
from filmgate.catalog.video_models import Defaults, Denoiser, EncoderUse, TextEncoder, Vae, VideoModel
from filmgate.errors import UsageError

Record = TypeVar("Record")


@cache
def load_catalog() -> Catalog:
    """The catalog as shipped; parsed once a process."""
    managed = tomllib.loads(read_data("managed.toml"))
    return Catalog(
        gpus={
            g.name: g
            for g in (gpu_of(name, row) for name, row in tomllib.loads(read_data("gpus.toml")).items())
        },
        instances={i.name: i for i in _rows(Instance, "instances.csv")},
        prices={(p.instance, p.region): p for p in _rows(Price, "prices.csv")},
        regions={r.name: r for r in _rows(Region, "regions.csv")},
        video_apis=_keyed(VideoApi, managed["video"], "managed.toml"),
        text_apis=_keyed(TextApi, managed["text"], "managed.toml"),
        video_models=read_video_models(json.loads(read_data("video_models.json"))),
        llms=_keyed(Llm, json.loads(read_data("llms.json")), "llms.json"),
        runs=_read_runs(),
    )


def gpu_of(name: str, row: Mapping[str, object]) -> Gpu:
    return to_record(Gpu, {"name": name, **row}, f"gpu {name}")


def read_video_models(tree: Mapping[str, Any]) -> dict[str, VideoModel]:
    """Models with their VAE and text encoders joined in."""
    encoders = _keyed(TextEncoder, tree["text_encoders"], "video_models.json")
    vaes = {
        key: to_record(Vae, {"id": key, **row, "match": list(row["match"].items())}, f"vae {key}")
        for key, row in tree["vaes"].items()
    }
    return {key: _video_model(key, row, vaes, encoders) for key, row in tree["models"].items()}


def _video_model(
    key: str, row: Mapping[str, Any], vaes: Mapping[str, Vae], encoders: Mapping[str, TextEncoder]
) -> VideoModel:
    uses = [to_record(EncoderUse, use, f"model {key}") for use in row["text_encoders"]]
    return VideoModel(
        id=key,
        name=row["name"],
        denoiser=to_record(Denoiser, row["denoiser"], f"model {key}.denoiser"),
        vae=vaes[row["vae"]],
        text_encoders=tuple((encoders[use.id], use.tokens) for use in uses),
        patch=tuple(row["patch"]),
        size_multiple=row["size_multiple"],
        frame_step=row["frame_step"],
        defaults=to_record(Defaults, row["defaults"], f"model {key}.defaults"),
        is_guidance_batched=row["is_guidance_batched"],
        is_fixed_shape=row["fixed_shape"],
        source=row["source"],
        as_of=row["as_of"],
        repo=row["repo"],
        note=row["note"],
    )


def _read_runs() -> Runs:
    video = json.loads(read_data("video_runs.json"))
    return Runs(
        video=tuple(to_record(VideoRun, row, f"video run {row['id']}") for row in video["time"]),
        memory=tuple(to_record(MemoryRun, row, f"memory run {row['id']}") for row in video["memory"]),
        llm=tuple(
            to_record(LlmRun, row, f"llm run {row['id']}") for row in json.loads(read_data("llm_runs.json"))
        ),
        measured=tuple(
            run
            for file in sorted(files("filmgate.catalog").joinpath("data/measured").iterdir(), key=str)
            if file.name.endswith(".json")
            for run in read_measured(json.loads(file.read_text()))
        ),
    )


def read_measured(report: Mapping[str, Any]) -> list[MeasuredRun]:
    """The runs of one report of benchmarks/gpu_planner_measurements.py."""
    keys = (
        "model",
        "stage",
        "width",
        "height",
        "frames",
        "mode",
        "seconds",
        "peak_bytes",
        "weight_bytes",
        "note",
    )
    gpu = str(report["machine"]["gpu"]).removeprefix("NVIDIA ").split()[0]
    shared = {"gpu": gpu, "source": report["source"], "as_of": report["as_of"]}
    return [
        to_record(MeasuredRun, {key: run.get(key) for key in keys} | shared, f"measured run {run['model']}")
        for run in report["runs"]
    ]


def load_calibration() -> Calibration:
    """The constants the last validation wrote."""
    row = json.loads(read_data("calibration.json"))
    return Calibration(**{**row, "seen_gpus": tuple(row["seen_gpus"])})


def read_data(name: str) -> str:
    """The text of one shipped data file."""
    return files("filmgate.catalog").joinpath("data", name).read_text(encoding="utf-8")


def read_prices(path: Path) -> list[Price]:
    """A price list in the shipped format, as `filmgate plan prices --refresh` writes it."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise UsageError(f"{path} cannot be read: {exc}", option="--prices") from exc
    rows = csv.DictReader(io.StringIO(text))
    return [to_record(Price, row, f"{path.name} line {number}") for number, row in enumerate(rows, start=2)]


def _rows(kind: type[Record], name: str) -> list[Record]:
    rows = csv.DictReader(io.StringIO(read_data(name)))
    return [to_record(kind, row, f"{name} line {number}") for number, row in enumerate(rows, start=2)]


def _keyed(kind: type[Record], table: Mapping[str, Mapping[str, Any]], where: str) -> dict[str, Record]:
    return {key: to_record(kind, {"id": key, **row}, f"{where} {key}") for key, row in table.items()}
