"""Where the weights go: a decision from sizes and free memory, and a look at both."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import prod
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from filmgate.errors import DeviceError, ModelError

HEADROOM = 1.2  # allocator rounding and fragmentation, on weights
ACTIVATION_BYTES = 4 << 30  # denoiser activations and decode working set at 480p; the ladder handles the rest


class Offload(StrEnum):
    """What leaves the GPU while it is not needed: nothing, whole components, or single layers."""

    NONE = "none"
    MODEL = "model"
    LAYERS = "layers"


@dataclass(frozen=True, slots=True)
class Placement:
    """Where and how a model is loaded."""

    device: torch.device
    dtype: torch.dtype
    offload: Offload


def choose_offload(component_bytes: Mapping[str, int], free_bytes: int) -> Offload:
    """All weights on the GPU if they fit beside activations, else a component at a time, else layers."""
    room = (free_bytes - ACTIVATION_BYTES) / HEADROOM
    if sum(component_bytes.values()) <= room:
        return Offload.NONE
    return Offload.MODEL if max(component_bytes.values()) <= room else Offload.LAYERS


def choose_device(wanted: str) -> torch.device:
    """`auto` is the first GPU or the CPU; a GPU that was asked for by name must be there."""
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", wanted):
        raise DeviceError(f"pipeline.device is {wanted!r}; use auto, cpu, cuda or cuda:N")
    device = torch.device(wanted)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise DeviceError(
            f"{wanted} was asked for, but torch {torch.__version__} sees {torch.cuda.device_count()} GPUs; "
            "run `filmgate doctor`, or set pipeline.device to auto or cpu"
        )
    return device


def choose_dtype(wanted: str, device: torch.device) -> torch.dtype:
    """bfloat16 on a GPU; float32 on a CPU, where half-precision convolutions are many times slower."""
    if wanted == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    dtype: torch.dtype = getattr(torch, wanted)
    return dtype


def free_bytes(device: torch.device) -> int:
    """Free memory on the GPU right now."""
    free, _total = torch.cuda.mem_get_info(device)
    return free


def component_bytes(folder: Path, dtype: torch.dtype) -> dict[str, int]:
    """Bytes of each component once loaded in `dtype`, from the safetensors headers alone."""
    sizes: dict[str, int] = {}
    for file in sorted(folder.glob("*/*.safetensors")):
        name = file.parent.name
        sizes[name] = sizes.get(name, 0) + _parameters(file) * dtype.itemsize
    return sizes


def _parameters(file: Path) -> int:
    try:
        with safe_open(file, framework="pt") as weights:  # maps the file and checks it, reads no weights
            shapes = [weights.get_slice(name).get_shape() for name in weights.keys()]  # noqa: SIM118
    except (OSError, SafetensorError) as exc:
        raise ModelError(f"{file} is not a readable safetensors file: {exc}") from exc
    return sum(prod(shape) for shape in shapes)
