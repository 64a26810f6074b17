"""Device, data type and memory of a model: where its weights go, what they take, how they are released."""

import atexit
import gc
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import prod
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from filmgate.errors import DeviceError, ModelError
from filmgate.models.weights.manifest import is_variant
from filmgate.pipeline.loading.compatibility import (
    explain_unused_gpu,
    find_facts,
    find_mig_uuid,
    find_mismatches,
    read_gpu,
    read_torch_build,
)
from filmgate.pipeline.loading.families import FAMILIES
from filmgate.pipeline.loading.families.base import Pipeline
from filmgate.pipeline.loading.quantization import FORMATS, Weights, is_quantized
from filmgate.settings import PipelineSettings
from filmgate.telemetry.logs import Log

log = Log("device")

HEADROOM = 1.2  # weights times this: allocator rounding and fragmentation
DENOISERS = frozenset(name for family in FAMILIES for name in family.denoisers)
ACTIVATION_BYTES = 4 << 30  # activations at 480p; above that, decoding uses smaller tiles

atexit.register(gc.unfreeze)  # otherwise extension modules report the frozen objects as leaks on stderr


class Offload(StrEnum):
    """What is moved off the GPU while it is not in use: nothing, whole components or single layers."""

    NONE = "none"
    MODEL = "model"
    LAYERS = "layers"


@dataclass(frozen=True, slots=True)
class Placement:
    """Where and how a model is loaded."""

    device: torch.device
    dtype: torch.dtype
    offload: Offload
    weights: Weights = "full"


def choose_offload(component_bytes: Mapping[str, int], free_bytes: int) -> Offload:
    """NONE if all weights fit beside the activations, MODEL if the largest component fits, else LAYERS."""
    room = (free_bytes - ACTIVATION_BYTES) / HEADROOM
    if sum(component_bytes.values()) <= room:
        return Offload.NONE
    return Offload.MODEL if max(component_bytes.values()) <= room else Offload.LAYERS


def resident_bytes(component_bytes: Mapping[str, int], offload: Offload) -> int:
    """The weights that are on the GPU at the same time: all, the largest component, or a layer of it."""
    match offload:
        case Offload.NONE:
            return sum(component_bytes.values())
        case Offload.MODEL:
            return max(component_bytes.values())
        case Offload.LAYERS:
            return 0  # the memory of activations has room for a layer


def choose_device(name: str) -> torch.device:
    """The device of the setting; `auto` is the first GPU, or the CPU of a machine without one.

    Raises DeviceError, also for `auto` on a machine with an NVIDIA GPU that torch cannot use.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        if (problem := explain_unused_gpu()) is not None:
            raise DeviceError(f"{problem}. To render on the CPU anyway, set pipeline.device to cpu")
        return torch.device("cpu")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise DeviceError(f"pipeline.device is {name!r}; use auto, cpu, cuda or cuda:N")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        problem = explain_unused_gpu() or "run `filmgate doctor`, or set pipeline.device to auto or cpu"
        raise DeviceError(
            f"pipeline.device is {name}, but torch {torch.__version__} finds {torch.cuda.device_count()} "
            f"GPUs; {problem}"
        )
    return device


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """The dtype of the setting; `auto` is bfloat16 on a GPU and float32 on a CPU.

    On a CPU, half-precision convolutions are many times slower.
    """
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def name_device(settings: PipelineSettings) -> str:
    """The name of the device in job records: `NVIDIA H200`, or `cpu`."""
    device = choose_device(settings.device)
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def check_gpu(settings: PipelineSettings) -> None:
    """Compare driver, CUDA, torch and the GPU. Raises DeviceError if the GPU cannot run; may warn."""
    gpu = read_gpu(find_gpu_uuid(settings))
    if gpu is None:
        return
    for found in find_mismatches(gpu, read_torch_build(), find_facts(gpu)):
        if found.is_fatal:
            raise DeviceError(f"{gpu.name}: {found.message}; {found.remedy}")
        log.warning("the driver is older than this GPU needs; run `filmgate doctor`", gpu=gpu.uuid)


def find_gpu_uuid(settings: PipelineSettings) -> str:
    """The UUID of the GPU or MIG device, as NVML writes it; "" on a CPU."""
    device = choose_device(settings.device)
    if device.type != "cuda":
        return ""
    uuid = find_mig_uuid() or f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    known = read_gpu(uuid)
    return known.uuid if known is not None else uuid


def budget_bytes(settings: PipelineSettings) -> int | None:
    """GPU memory for the weights of all loaded models; None on a CPU.

    0 on a GPU that has only enough for activations: models are then offloaded by layers.
    """
    device = choose_device(settings.device)
    if device.type != "cuda":
        return None
    total: int = torch.cuda.get_device_properties(device).total_memory
    return max(total - ACTIVATION_BYTES, 0)


def estimate_bytes(location: str, settings: PipelineSettings, budget: int | None) -> int:
    """Memory that a model needs, from its files; 0 if the location is not a local folder.

    With `auto`, a model is offloaded only if it is larger than the budget: other models make room first.
    """
    dtype = choose_dtype(settings.dtype, choose_device(settings.device))
    sizes = component_bytes(Path(location).expanduser(), dtype, settings.weights)
    if not sizes:
        return 0
    if settings.offload != "auto":
        offload = Offload(settings.offload)
    else:
        offload = Offload.NONE if budget is None else choose_offload(sizes, budget + ACTIVATION_BYTES)
    return int(resident_bytes(sizes, offload) * HEADROOM)


def read_free_bytes(device: torch.device) -> int:
    """Free GPU memory, including what torch keeps for later and can release."""
    free, _total = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def component_bytes(folder: Path, dtype: torch.dtype, weights: Weights = "full") -> dict[str, int]:
    """Bytes of each component once loaded in `dtype`, from the headers of its safetensors files.

    The blocks of denoisers are counted in the precision of `weights`.
    """
    sizes: dict[str, int] = {}
    for file in sorted(folder.glob("*/*.safetensors")):
        if is_variant(file.name):
            continue
        name = file.parent.name
        small = FORMATS.get(weights, dtype).itemsize if name in DENOISERS else dtype.itemsize
        counted = (
            prod(shape) * (small if is_quantized(tensor, shape) else dtype.itemsize)
            for tensor, shape in _shapes(file).items()
        )
        sizes[name] = sizes.get(name, 0) + sum(counted)
    return sizes


def loaded_bytes(pipe: Pipeline) -> dict[str, int]:
    """Bytes of each loaded component, for a hub id, whose files are in the hub's cache."""
    parts = ((name, part) for name, part in pipe.components.items() if isinstance(part, torch.nn.Module))
    return {name: sum(weights.nbytes for weights in part.parameters()) for name, part in parts}


def drop_weights(pipe: Pipeline) -> None:
    """Free the weights at once. The modules, which reference each other, live until a garbage collection."""
    if hasattr(pipe, "remove_all_hooks"):
        pipe.remove_all_hooks()
    pipe.to("meta")


def release(pipe: Pipeline, device: torch.device) -> None:
    """Free the model's memory before another model is loaded."""
    drop_weights(pipe)
    collect_and_freeze()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def collect_and_freeze() -> None:
    """Collect garbage, then exclude the objects that remain from later collections.

    With torch and diffusers loaded, a full collection walks half a million objects and stops every thread for
    0.3 s. That is longer than the decoder works ahead, so the GPU would be idle (docs/decoder.md).
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def _shapes(file: Path) -> dict[str, list[int]]:
    try:
        with safe_open(file, framework="pt") as weights:  # maps and checks the file without reading weights
            return {name: weights.get_slice(name).get_shape() for name in weights.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as exc:
        raise ModelError(f"{file} is not a readable safetensors file: {exc}") from exc
