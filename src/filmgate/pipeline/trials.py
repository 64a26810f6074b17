"""Timed trials: which of two implementations is faster on this machine, timed once and kept on disk.

Kernels that were tuned on one GPU may lose to those of a library on another. Each machine decides once for
every GPU, shape and version of what is compared.
"""

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from filmgate.pipeline.kernel_cache import cache_folder
from filmgate.pipeline.transfer.streams import open_streams
from filmgate.telemetry.logs import Log

log = Log("trials")

FILE_NAME = "filmgate-trials.json"
ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Trial:
    """The best time of each implementation for the same work."""

    fast_seconds: float
    exact_seconds: float

    @property
    def is_fast_faster(self) -> bool:
        return self.fast_seconds < self.exact_seconds


def wins_trial(key: str, run: Callable[[], Trial]) -> bool:
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
    return ", ".join(
        (gpu, *(f"{name} {_version(name)}" for name in ("torch", "triton", "filmgate", *packages)))
    )


def network_key(kind: str, name: str, config: Any, dtype: torch.dtype, device: torch.device) -> str:
    """The key of a trial of one network: its configuration, and everything it runs on."""
    digest = sha256(json.dumps(dict(config), sort_keys=True, default=str).encode()).hexdigest()[:16]
    return ", ".join((kind, name, digest, str(dtype), machine_key(device)))


@cache
def _version(package: str) -> str:
    if package == "torch":
        return str(torch.__version__)  # with the CUDA version
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def read_trials(file: Path) -> Mapping[str, Trial]:
    """The results on disk; none if there is no file or it cannot be read."""
    try:
        return {key: Trial(**found) for key, found in json.loads(file.read_text()).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as exc:
        log.warning("the results of earlier trials cannot be read; timing again", error=exc)
        return {}


def _write_trials(file: Path, trials: Mapping[str, Trial]) -> None:
    part = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps({key: asdict(trial) for key, trial in trials.items()}, indent=1))
        part.replace(file)
    except OSError as exc:
        log.warning("the result of a trial cannot be kept; the next process times again", error=exc)
