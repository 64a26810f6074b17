"""Findings about the machine Filmgate runs on: what was looked at, the verdict, and the remedy."""

import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

LITTLE_DISK_BYTES = 5 << 30


class Verdict(StrEnum):
    """Fine, usable with a limit, or broken."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of `filmgate doctor`; anything but OK names its remedy."""

    subject: str
    verdict: Verdict
    message: str
    remedy: str = ""


def examine_machine(folder: Path) -> Iterator[Finding]:
    """Python and the disk under `folder`."""
    is_supported = sys.version_info >= (3, 11)
    yield Finding(
        "Python",
        Verdict.OK if is_supported else Verdict.FAIL,
        platform.python_version(),
        "" if is_supported else "install Python 3.11 or later",
    )
    try:
        free = shutil.disk_usage(folder).free
    except OSError as exc:
        yield Finding("disk", Verdict.FAIL, f"{folder}: {exc.strerror}", "choose a folder that exists")
        return
    is_enough = free >= LITTLE_DISK_BYTES
    remedy = "" if is_enough else "free some space: a clip needs little, model weights need tens of GB"
    yield Finding("disk", Verdict.OK if is_enough else Verdict.WARN, f"{free / 2**30:.1f} GiB free", remedy)


def missing_worker(module: str) -> Finding:
    """What to say when the worker extra is not installed."""
    return Finding("worker", Verdict.FAIL, f"{module} is not installed", "pip install 'filmgate[worker]'")


def missing_aws(subject: str) -> Finding:
    """What to say when a part on AWS is configured and the aws extra is not installed."""
    return Finding(subject, Verdict.FAIL, "boto3 is not installed", "pip install 'filmgate[aws]'")
