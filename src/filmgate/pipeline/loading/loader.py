"""Loads a diffusers video pipeline from the package, a folder or the hub onto its device."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from filmgate.errors import ModelError
from filmgate.models.limits import ModelLimits
from filmgate.models.names import SHIPPED, check_location, shipped_folder
from filmgate.models.weights.outages import find_outage
from filmgate.pipeline.loading.families import family_of, known_pipelines
from filmgate.pipeline.loading.families.base import Family, Pipeline
from filmgate.pipeline.loading.limits import read_limits
from filmgate.pipeline.loading.memory import (
    Offload,
    Placement,
    choose_device,
    choose_dtype,
    choose_offload,
    component_bytes,
    loaded_bytes,
    read_free_bytes,
)
from filmgate.pipeline.loading.quantization import quantize_blocks
from filmgate.pipeline.memory_errors import out_of_memory_as
from filmgate.settings import PipelineSettings


@dataclass(frozen=True, slots=True)
class VideoModel:
    """A loaded pipeline with its family, placement and limits."""

    name: str
    family: Family
    pipe: Pipeline
    placement: Placement
    limits: ModelLimits


def load_model(name: str, settings: PipelineSettings) -> VideoModel:
    """Load `name`: a shipped model, a folder or a hub id.

    Raises UsageError for a name or folder that is not a model, ModelUnavailable if the hub cannot be reached,
    ModelError if the model cannot be loaded, and OutOfMemory.
    """
    device = choose_device(settings.device)
    dtype = choose_dtype(settings.dtype, device)
    source = str(shipped_folder(name)) if name in SHIPPED else name
    folder = Path(source).expanduser()
    pipe = _from_pretrained(source, folder, dtype)
    family = family_of(type(pipe).__name__)
    if family is None:
        raise ModelError(
            f"--model {name}: Filmgate does not run {type(pipe).__name__}; it runs "
            + ", ".join(known_pipelines())
        )
    with out_of_memory_as(
        f"--model {name} does not fit into GPU memory; free memory on the GPU, "
        "or set pipeline.offload to auto, model or layers"
    ):
        quantize_blocks(family.denoisers_of(pipe), settings.weights, device)
        sizes = component_bytes(folder, dtype, settings.weights) or loaded_bytes(pipe)
        offload = _choose_offload(settings, device, sizes)
        place(pipe, device, offload)
    if device.type == "cpu":
        use_channels_last(pipe.vae)
    limits = read_limits(pipe, family, folder)
    return VideoModel(name, family, pipe, Placement(device, dtype, offload, settings.weights), limits)


def source_folder(model: VideoModel) -> Path:
    """The folder that the model was loaded from; for a hub id, its folder in the hub's cache."""
    return Path(str(model.pipe.config["_name_or_path"]))


def use_channels_last(vae: torch.nn.Module) -> None:
    """Store convolution weights channels-last, which is faster on a CPU. The values do not change."""
    for layer in vae.modules():
        if isinstance(layer, torch.nn.Conv3d):
            layer.weight.data = layer.weight.data.to(memory_format=torch.channels_last_3d)
        elif isinstance(layer, torch.nn.Conv2d):
            layer.weight.data = layer.weight.data.to(memory_format=torch.channels_last)


def place(pipe: Pipeline, device: torch.device, offload: Offload) -> None:
    """Move the pipeline to its device, or install accelerate's offload hooks."""
    if device.type != "cuda" or offload is Offload.NONE:
        pipe.to(device)
    elif offload is Offload.MODEL:
        pipe.enable_model_cpu_offload(device=device)
    else:
        pipe.enable_sequential_cpu_offload(device=device)


def image_pipeline(model: VideoModel) -> Pipeline:
    """The pipeline that starts from an image: the loaded one, or its image class on the same weights."""
    import diffusers

    name = model.family.facts.image_to_video
    if name is None or type(model.pipe).__name__ == name:
        return model.pipe
    image_class = getattr(diffusers, name)
    # Not from_pipe: it casts the shared weights to a single dtype, float32 by default.
    parts = {**model.pipe.config, **model.pipe.components}
    accepted = inspect.signature(image_class).parameters
    pipe = image_class(**{part: parts[part] for part in accepted if part in parts})
    pipe.set_progress_bar_config(disable=True)
    return pipe


def _from_pretrained(source: str, folder: Path, dtype: torch.dtype) -> Pipeline:
    import diffusers
    import transformers

    for library in (diffusers, transformers):
        library.utils.logging.disable_progress_bar()  # stderr is for our own lines
    is_local = bool(source) and (folder.exists() or source.startswith((".", "/", "~")))
    check_location(source)
    try:
        pipe = diffusers.DiffusionPipeline.from_pretrained(
            str(folder) if is_local else source,
            dtype=dtype,
            use_safetensors=True,
            local_files_only=is_local,
        )
    except Exception as exc:  # diffusers raises errors of every type
        if not is_local and (outage := find_outage(exc, source)):
            raise outage from exc
        reason = str(exc).partition("\n")[0]
        raise ModelError(f"--model {source} cannot be loaded: {type(exc).__name__}: {reason}") from exc
    pipe.set_progress_bar_config(disable=True)
    return pipe


def _choose_offload(settings: PipelineSettings, device: torch.device, sizes: Mapping[str, int]) -> Offload:
    if settings.offload != "auto":
        return Offload(settings.offload)
    if device.type != "cuda":
        return Offload.NONE
    return choose_offload(sizes, read_free_bytes(device))
