"""Reads the shipped data files into a Catalog."""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from filmgate.catalog.calibrations import Calibration
from filmgate.catalog.catalog import Catalog
from filmgate.catalog.gpus import Gpu
from filmgate.catalog.instances import Instance, Price, Region
from filmgate.catalog.llms import Llm
from filmgate.catalog.managed import TextApi, VideoApi
from filmgate.catalog.records import parse_csv, parse_record, parse_rows, read_text, with_keys
from filmgate.catalog.runs import LlmRun, MeasuredRun, MemoryRun, Runs, VideoRun
from filmgate.catalog.video_models import VideoModel
from filmgate.errors import UsageError


@cache
def load_catalog() -> Catalog:
    """The shipped catalog; parsed once per process."""
    managed = tomllib.loads(read_data("managed.toml"))
    gpus = tomllib.loads(read_data("gpus.toml"))
    llms = json.loads(read_data("llms.json"))
    instances = parse_csv(Instance, read_data("instances.csv"), "instances.csv")
    prices = parse_csv(Price, read_data("prices.csv"), "prices.csv")
    regions = parse_csv(Region, read_data("regions.csv"), "regions.csv")
    return Catalog(
        gpus=parse_rows(dict[str, Gpu], with_keys(gpus, "name"), "gpus.toml"),
        instances={instance.name: instance for instance in instances},
        prices={(price.instance, price.region): price for price in prices},
        regions={region.name: region for region in regions},
        video_apis=parse_rows(dict[str, VideoApi], with_keys(managed["video"], "id"), "managed.toml video"),
        text_apis=parse_rows(dict[str, TextApi], with_keys(managed["text"], "id"), "managed.toml text"),
        video_models=_read_video_models(json.loads(read_data("video_models.json"))),
        llms=parse_rows(dict[str, Llm], with_keys(llms, "id"), "llms.json"),
        runs=_read_runs(),
    )


def _read_video_models(tree: Mapping[str, Any]) -> dict[str, VideoModel]:
    """Models with the VAE and the text encoders that they name by id."""
    rows = {
        key: {
            **row,
            "id": key,
            "vae": _component(tree, "vaes", row["vae"], key),
            "text_encoders": [
                {**_component(tree, "text_encoders", use["id"], key), "tokens": use["tokens"]}
                for use in row["text_encoders"]
            ],
        }
        for key, row in tree["models"].items()
    }
    return parse_rows(dict[str, VideoModel], rows, "video_models.json models")


def _component(tree: Mapping[str, Any], section: str, name: str, model: str) -> dict[str, Any]:
    if name not in tree[section]:
        raise UsageError(f"video_models.json models: {model}: {section} has no entry {name}")
    return {"id": name, **tree[section][name]}


def _read_runs() -> Runs:
    video = json.loads(read_data("video_runs.json"))
    llm = json.loads(read_data("llm_runs.json"))
    reports = sorted(files("filmgate.catalog").joinpath("data/measured").iterdir(), key=str)
    return Runs(
        video=tuple(parse_rows(list[VideoRun], video["time"], "video_runs.json time")),
        memory=tuple(parse_rows(list[MemoryRun], video["memory"], "video_runs.json memory")),
        llm=tuple(parse_rows(list[LlmRun], llm, "llm_runs.json")),
        measured=tuple(
            run
            for file in reports
            if file.name.endswith(".json")
            for run in read_measured(json.loads(file.read_bytes()), file.name)
        ),
    )


def read_measured(report: Mapping[str, Any], source: str) -> list[MeasuredRun]:
    """The runs in one report of benchmarks/gpu_planner_measurements.py, without its individual samples."""
    gpu = str(report["machine"]["gpu"]).removeprefix("NVIDIA ").split()[0]
    shared = {"gpu": gpu, "source": report["source"], "as_of": report["as_of"]}
    known = {field.name for field in fields(MeasuredRun)}
    rows = [{key: run[key] for key in run.keys() & known} | shared for run in report["runs"]]
    return parse_rows(list[MeasuredRun], rows, f"{source} runs")


def load_calibration() -> Calibration:
    return parse_record(Calibration, json.loads(read_data("calibration.json")), "calibration.json")


def read_data(name: str) -> str:
    return files("filmgate.catalog").joinpath("data", name).read_text(encoding="utf-8")


def read_prices(path: Path) -> list[Price]:
    """A price list in the shipped format, such as `filmgate plan prices --refresh` writes."""
    return parse_csv(Price, read_text(path, "--prices"), path.name, option="--prices")
