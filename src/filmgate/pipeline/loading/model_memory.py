"""Models that come and go on one device: what one will need, what there is, and how it leaves."""

import atexit
import gc
from pathlib import Path

import torch

from filmgate.pipeline.loading.loader import VideoModel
from filmgate.pipeline.loading.memory import (
    ACTIVATION_BYTES,
    HEADROOM,
    choose_device,
    choose_dtype,
    component_bytes,
)
from filmgate.settings import PipelineSettings

atexit.register(gc.unfreeze)  # libraries that count what they leave behind would complain of it on stderr


def name_device(settings: PipelineSettings) -> str:
    """The device as records name it: `NVIDIA H200`, or `cpu`."""
    device = choose_device(settings.device)
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def budget_bytes(settings: PipelineSettings) -> int | None:
    """What models may take together: the GPU less the working set of one job; None on a CPU."""
    device = choose_device(settings.device)
    if device.type != "cuda":
        return None
    total: int = torch.cuda.get_device_properties(device).total_memory
    return total - ACTIVATION_BYTES


def weigh(location: str, settings: PipelineSettings) -> int:
    """What a model will take once loaded, from its files alone; 0 where there are none to look at."""
    dtype = choose_dtype(settings.dtype, choose_device(settings.device))
    sizes = component_bytes(Path(location).expanduser(), dtype)
    return int(sum(sizes.values()) * HEADROOM)


def release(model: VideoModel) -> None:
    """Give the model's memory back to the device before the next one is loaded."""
    if hasattr(model.pipe, "remove_all_hooks"):
        model.pipe.remove_all_hooks()
    model.pipe.to("meta")
    settle()
    if model.placement.device.type == "cuda":
        torch.cuda.empty_cache()


def settle() -> None:
    """What is loaded now stays: the garbage collector need not walk it again, in the middle of a clip.

    With torch and diffusers loaded a full collection walks half a million objects and stops every thread for
    0.3 s: longer than a decoder works ahead, so the GPU falls idle (docs/decoder.md).
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
