"""Which of two implementations runs here: the fast one if it agrees with the exact one and is faster.

Kernels that were tuned on one GPU may lose to a library's kernels on another, and they are compiled on the
user's machine. Each process checks that both agree. Each machine times both once for every GPU, shape and
version of what is compared, and keeps the result next to the compiled kernels.
"""

import getpass
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from math import inf, isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from filmgate.pipeline.transfer.streams import open_streams
from filmgate.settings import PipelineSettings
from filmgate.telemetry.logs import Log

log = Log("trials")

CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
FILE_NAME = "filmgate-trials.json"
ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Trial:
    """The best time of each implementation for the same work."""

    fast_seconds: float
    exact_seconds: float

    def __post_init__(self) -> None:
        """Raise ValueError unless both are times: a file on disk may contain anything."""
        for seconds in (self.fast_seconds, self.exact_seconds):
            if not isinstance(seconds, int | float) or not 0 < seconds < inf:
                raise ValueError(f"{seconds!r} is not a time")

    @property
    def is_fast_faster(self) -> bool:
        return self.fast_seconds < self.exact_seconds


@dataclass(frozen=True, slots=True)
class Candidate:
    """A fast implementation: its name in messages, how far it is from the exact one, and a timed comparison.

    `error` returns None if there is no fast implementation. `key` names everything that the times depend on.
    Without a `trial`, the fast implementation is used if it agrees.
    """

    name: str
    error: Callable[[], float | None]
    max_error: float
    key: str = ""
    trial: Callable[[], Trial] | None = None


@torch.inference_mode()
def choose(candidate: Candidate) -> bool | None:
    """Whether to use the fast implementation; None if there was not enough memory to find out."""

    def skip(why: str, error: Exception | None = None, **fields: float | None) -> None:
        message = f"not using {candidate.name}: {why}"
        log.warning(message, error=error, **fields)

    try:
        error = candidate.error()
        if error is None:
            return False
        if not error <= candidate.max_error:
            skip("the self-test failed", relative_error=round(error, 4) if isfinite(error) else None)
            return False
        return candidate.trial is None or _wins(candidate.key, candidate.trial)
    except torch.OutOfMemoryError:
        skip("not enough GPU memory to try")
        return None
    except Exception as exc:  # noqa: BLE001 - Triton, its C compiler and other packages fail in many ways
        skip("the self-test raised an error", error=exc)
        return False


def _wins(key: str, run: Callable[[], Trial]) -> bool:
    """Whether the fast implementation is faster: as kept on disk under `key`, or as `run` finds now."""
    file = cache_folder() / FILE_NAME
    kept = read_trials(file)
    if key not in kept:
        trial = run()
        winner = "fast" if trial.is_fast_faster else "exact"
        log.info("timed both implementations on this GPU; using the faster one", reason=winner)
        kept = {**kept, key: trial}
        _write_trials(file, kept)
    return kept[key].is_fast_faster


def relative_error(found: Tensor, expected: Tensor) -> float:
    """The norm of the difference, relative to the norm of what is expected; infinite for NaN."""
    error = float((found.float() - expected.float()).norm() / expected.float().norm())
    return error if isfinite(error) else inf


def time_both(fast: Callable[[], object], exact: Callable[[], object], device: torch.device) -> Trial:
    """Run both alternately, after a warm-up. The best time is the least disturbed."""
    streams = open_streams(device)
    seconds: list[list[float]] = [[], []]
    for _ in range(1 + ROUNDS):
        for times, work in zip(seconds, (fast, exact), strict=True):
            streams.drain()
            started = time.perf_counter()
            work()
            streams.drain()
            times.append(time.perf_counter() - started)
    return Trial(*(min(times[1:]) for times in seconds))


def machine_key(device: torch.device, *packages: str) -> str:
    """The part of a key that every trial has: the GPU, and the versions of torch, Triton and Filmgate."""
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    versions = (f"{name} {_version(name)}" for name in ("torch", "triton", "filmgate", *packages))
    return ", ".join((gpu, *versions))


def network_key(
    kind: str, config: Mapping[str, Any], dtype: torch.dtype, device: torch.device, *packages: str
) -> str:
    """The key of a trial of one network: its configuration, and everything it runs on."""
    digest = sha256(json.dumps(dict(config), sort_keys=True, default=str).encode()).hexdigest()[:16]
    return ", ".join((kind, digest, str(dtype), machine_key(device, *packages)))


@cache
def _version(package: str) -> str:
    if package == "torch":
        return str(torch.__version__)  # with the CUDA version
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def set_cache_folder(settings: PipelineSettings) -> None:
    """Use `pipeline.compile_cache`. Call this before anything is compiled."""
    if settings.compile_cache:
        folder = Path(settings.compile_cache).expanduser()
        os.environ[CACHE_VARIABLE] = str(folder)  # torch reads only this variable
        os.environ.setdefault(
            "TRITON_CACHE_DIR", str(folder / "triton")
        )  # kernels that torch does not compile


def cache_folder() -> Path:
    """The folder of torch's compiled kernels: the variable, else a folder per user for temporary files."""
    if folder := os.environ.get(CACHE_VARIABLE):
        return Path(folder)
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run as a user without a name
        user = f"uid_{os.getuid()}"  # as torch does
    return Path(tempfile.gettempdir()) / f"torchinductor_{user}"


def read_trials(file: Path) -> Mapping[str, Trial]:
    """The valid results on disk; empty if the file cannot be read."""
    found: dict[str, Trial] = {}
    try:
        entries = json.loads(file.read_text()).items()
    except FileNotFoundError:
        return found
    except (OSError, ValueError, AttributeError) as exc:
        log.warning("the results of earlier trials cannot be read; timing again", error=exc)
        return found
    for key, entry in entries:
        try:
            found[key] = Trial(**entry)
        except (TypeError, ValueError) as exc:
            log.warning("the result of an earlier trial cannot be read; timing again", error=exc)
    return found


def _write_trials(file: Path, trials: Mapping[str, Trial]) -> None:
    part = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps({key: asdict(trial) for key, trial in trials.items()}, indent=1))
        part.replace(file)
    except OSError as exc:
        log.warning("the result of a trial cannot be kept; the next process times again", error=exc)
        with suppress(OSError):
            part.unlink()
