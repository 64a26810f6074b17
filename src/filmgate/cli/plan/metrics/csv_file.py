"""Reads GPU metrics from CSV, with Filmgate, DCGM exporter or nvidia-smi column names."""

import csv
import io
from collections.abc import Mapping
from math import inf, nan
from pathlib import Path

from filmgate.catalog.gpus import MIB
from filmgate.catalog.records import read_text
from filmgate.errors import UsageError
from filmgate.planner.rightsize import GpuMetrics

OPTION = "--metrics-file"
COLUMN_NAMES = {
    "gpu_util": ("gpu_util", "gpu_utilisation", "dcgm_fi_dev_gpu_util", "utilization.gpu [%]", "utilization"),
    "memory_used_mib": ("memory_used_mib", "dcgm_fi_dev_fb_used", "memory.used [mib]"),
    "sm_active": ("sm_active", "dcgm_fi_prof_sm_active"),
    "dram_active": ("dram_active", "dcgm_fi_prof_dram_active"),
}

HIGHEST = {"gpu_util": 100.0, "memory_used_mib": inf, "sm_active": 1.0, "dram_active": 1.0}


def read_csv_metrics(path: Path) -> GpuMetrics:
    """The samples, with percentages as shares. Raises UsageError."""
    try:
        rows = list(csv.DictReader(io.StringIO(read_text(path, OPTION))))
    except csv.Error as exc:
        raise UsageError(f"{path} cannot be read: {exc}", option=OPTION) from exc
    columns = {name: _column(rows, names, HIGHEST[name]) for name, names in COLUMN_NAMES.items()}
    if not columns["gpu_util"] or not columns["memory_used_mib"]:
        raise UsageError(
            f"{path} must have the columns gpu_util (percent) and memory_used_mib, or their DCGM names",
            option=OPTION,
        )
    return GpuMetrics(
        gpu_share=tuple(value / 100 for value in columns["gpu_util"]),
        memory_bytes=tuple(value * MIB for value in columns["memory_used_mib"]),
        sm_share=columns["sm_active"],
        dram_share=columns["dram_active"],
    )


def _column(rows: list[dict[str, str]], names: tuple[str, ...], highest: float) -> tuple[float, ...]:
    cells = ((line, _cell(row, names)) for line, row in enumerate(rows, start=2))
    return tuple(_number(text, line, highest) for line, text in cells if text)


def _number(text: str, line: int, highest: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = nan
    if not 0 <= value <= highest or value == inf:
        limit = "at least 0" if highest == inf else f"0 to {highest:g}"
        raise UsageError(f"line {line}: {text!r} is not a number of {limit}", option=OPTION)
    return value


def _cell(row: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    for name, value in row.items():
        if name and name.strip().lower() in names:
            return (value or "").strip().removesuffix("%").removesuffix("MiB").strip()
    return None
