"""Findings of `filmgate doctor`: the subject, a verdict, a message and a remedy."""

import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

MIN_FREE_BYTES = 5 << 30

# The package is not on PyPI: extras are installed from the source folder or from a wheel file.
WORKER_MODULES = (
    *("torch", "av", "diffusers", "huggingface_hub", "transformers", "numpy", "PIL"),
    *("accelerate", "ftfy", "pynvml", "safetensors", "sentencepiece"),
)
INSTALL_WORKER = "in the source folder, run: pip install '.[worker]'"
INSTALL_TELEMETRY = "in the source folder, run: pip install '.[telemetry]'"
INSTALL_AWS = "in the source folder, run: pip install '.[aws]'"


class Verdict(StrEnum):
    """OK, usable with a restriction, or broken."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of `filmgate doctor`. Every verdict but OK has a remedy."""

    subject: str
    verdict: Verdict
    message: str
    remedy: str = ""


def examine_machine(data: Path) -> Iterator[Finding]:
    """The Python version, and the disk that has the data folder or will have it."""
    yield Finding("Python", Verdict.OK, platform.python_version())
    folder = next(place for place in (data.absolute(), *data.absolute().parents) if place.exists())
    free = shutil.disk_usage(folder).free
    is_enough = free >= MIN_FREE_BYTES
    remedy = "" if is_enough else "free disk space: model weights need tens of GB"
    message = f"{free / 2**30:.1f} GiB free in {folder}"
    yield Finding("disk", Verdict.OK if is_enough else Verdict.WARN, message, remedy)


def missing_worker(module: str) -> Finding:
    """The worker extra is not installed."""
    return Finding("worker", Verdict.FAIL, f"{module} is not installed", INSTALL_WORKER)


def missing_aws(subject: str) -> Finding:
    """An AWS component is configured and the aws extra is not installed."""
    return Finding(subject, Verdict.FAIL, "boto3 is not installed", INSTALL_AWS)
