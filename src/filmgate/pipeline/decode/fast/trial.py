"""Whether the fast decoder is faster on this GPU: a timed trial at first use, kept on disk.

The fast decoder was tuned on one GPU. On others its kernels may lose to those of cuDNN, so each machine
decides once for every GPU, VAE and version of torch.
"""

import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from torch import Tensor

from filmgate.catalog.gpus import can_decode_fast
from filmgate.pipeline.decode.base import WHOLE_FRAME, Vae, VideoDecoder
from filmgate.pipeline.decode.fast.decoder import FastDecoder, pipeline_latents
from filmgate.pipeline.kernel_cache import cache_folder
from filmgate.pipeline.transfer.streams import open_streams
from filmgate.telemetry.logs import Log

log = Log("decode")

FILE_NAME = "filmgate-decoder-trials.json"
LATENTS = (32, 52)  # rows and columns: 416x256, small enough for every GPU
ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Trial:
    """The best time of each decoder for the same clip."""

    fast_seconds: float
    exact_seconds: float

    @property
    def is_fast_faster(self) -> bool:
        return self.fast_seconds < self.exact_seconds


def may_be_fast(vae: Vae) -> bool:
    """Whether `auto` tries the fast decoder on the GPU of this VAE."""
    return can_decode_fast(torch.cuda.get_device_capability(vae.device))


def wins_trial(decoder: FastDecoder, vae: Vae) -> bool:
    """Whether the fast decoder is faster than the exact one here: as kept on disk, or timed now."""
    key, file = trial_key(vae), cache_folder() / FILE_NAME
    kept = read_trials(file)
    if key not in kept:
        trial = run_trial(decoder, vae)
        winner = "fast" if trial.is_fast_faster else "exact"
        log.info("timed both decoders on this GPU; using the faster one", reason=winner)
        kept = {**kept, key: trial}
        _write_trials(file, kept)
    return kept[key].is_fast_faster


@torch.inference_mode()
def run_trial(decoder: FastDecoder, vae: Vae) -> Trial:
    """Decode the same clip with both, alternately, after a warm-up. The best time is the least disturbed."""
    noise = pipeline_latents(vae, LATENTS)
    seconds: dict[str, list[float]] = {"fast": [], "exact": []}
    for _ in range(1 + ROUNDS):
        for name, one in (("fast", decoder), ("exact", decoder.exact)):
            seconds[name].append(_time(one, noise))
    return Trial(min(seconds["fast"][1:]), min(seconds["exact"][1:]))


def _time(decoder: VideoDecoder, noise: Tensor) -> float:
    streams = open_streams(noise.device)
    streams.drain()
    started = time.perf_counter()
    for _ in decoder.chunks(decoder.to_vae_latents(noise), WHOLE_FRAME):
        pass
    streams.drain()
    return time.perf_counter() - started


def trial_key(vae: Vae) -> str:
    """What the result depends on: the GPU, the VAE, its dtype, and the compilers."""
    device = vae.device
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    config = sha256(json.dumps(dict(vae.config), sort_keys=True, default=str).encode()).hexdigest()[:16]
    compilers = (
        f"torch {torch.__version__}",
        f"triton {_version('triton')}",
        f"filmgate {_version('filmgate')}",
    )
    return ", ".join((gpu, type(vae).__name__, config, str(vae.dtype), *compilers))


def _version(package: str) -> str:
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
        log.warning("the results of earlier decoder trials cannot be read; timing again", error=exc)
        return {}


def _write_trials(file: Path, trials: Mapping[str, Trial]) -> None:
    part = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps({key: asdict(trial) for key, trial in trials.items()}, indent=1))
        part.replace(file)
    except OSError as exc:
        log.warning("the result of the decoder trial cannot be kept; the next process times again", error=exc)
