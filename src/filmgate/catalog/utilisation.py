"""Reads a week of GPU metrics from CSV: our own column names, or those of the DCGM exporter."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from filmgate.errors import UsageError

NAMES = {
    "gpu_util": ("gpu_util", "gpu_utilisation", "dcgm_fi_dev_gpu_util", "utilization.gpu [%]", "utilization"),
    "memory_used_mib": ("memory_used_mib", "dcgm_fi_dev_fb_used", "memory.used [mib]"),
    "sm_active": ("sm_active", "dcgm_fi_prof_sm_active"),
    "dram_active": ("dram_active", "dcgm_fi_prof_dram_active"),
}


@dataclass(frozen=True, slots=True)
class Utilisation:
    """Samples of one GPU or of several together; a column that was not in the file is empty."""

    gpu_share: tuple[float, ...]
    memory_bytes: tuple[float, ...]
    sm_share: tuple[float, ...]
    dram_share: tuple[float, ...]


def read_utilisation(path: Path) -> Utilisation:
    """The samples; percentages become shares."""
    try:
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as exc:
        raise UsageError(f"{path} cannot be read: {exc}", option="--utilisation") from exc
    columns = {name: _column(rows, spellings) for name, spellings in NAMES.items()}
    if not columns["gpu_util"] or not columns["memory_used_mib"]:
        raise UsageError(
            f"{path} needs the columns gpu_util (percent) and memory_used_mib, or the DCGM names of both",
            option="--utilisation",
        )
    return Utilisation(
        gpu_share=tuple(value / 100 for value in columns["gpu_util"]),
        memory_bytes=tuple(value * (1 << 20) for value in columns["memory_used_mib"]),
        sm_share=columns["sm_active"],
        dram_share=columns["dram_active"],
    )


def _column(rows: list[dict[str, str]], spellings: tuple[str, ...]) -> tuple[float, ...]:
    found = []
    for number, row in enumerate(rows, start=2):
        text = _cell(row, spellings)
        if not text:
            continue
        try:
            found.append(float(text))
        except ValueError as exc:
            raise UsageError(f"line {number}: {text!r} is not a number", option="--utilisation") from exc
    return tuple(found)


def _cell(row: Mapping[str, str], spellings: tuple[str, ...]) -> str | None:
    for name, value in row.items():
        if name and name.strip().lower() in spellings:
            return (value or "").strip().removesuffix("%").removesuffix("MiB").strip()
    return None
