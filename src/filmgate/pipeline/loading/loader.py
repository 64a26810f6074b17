"""Loading a diffusers video pipeline, from the package, a folder or a hub id, onto its device."""

import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import torch

from filmgate.errors import ModelError, ModelUnavailable, UsageError
from filmgate.jobs import Size, SourceKind
from filmgate.models.limits import FrameLimits, ModelLimits, Range, SizeLimits
from filmgate.pipeline.loading.families import Family, family_of, known_pipelines
from filmgate.pipeline.loading.hub import find_outage
from filmgate.pipeline.loading.memory import (
    Offload,
    Placement,
    choose_device,
    choose_dtype,
    choose_offload,
    component_bytes,
    free_bytes,
)
from filmgate.pipeline.loading.quality import apply_quality
from filmgate.settings import PipelineSettings

Pipeline = Any
"""A diffusers pipeline; diffusers ships no types."""

DEFAULTS_FILE = "filmgate.json"
"""Optional, beside model_index.json: the model's own width, height, frames, fps, steps and guidance."""

MAX_FPS, MAX_STEPS, MAX_GUIDANCE = 60, 1000, 100.0

SHIPPED = ("flipbook", "miniature")
"""Models in the package itself, under models/shipped: one that draws, one of random weights for drills."""


@dataclass(frozen=True, slots=True)
class VideoModel:
    """A loaded pipeline and what there is to know about it."""

    name: str
    family: Family
    pipe: Pipeline
    placement: Placement
    limits: ModelLimits


def load_model(name: str, settings: PipelineSettings) -> VideoModel:
    """Load `name` (shipped model, folder or hub id); raises UsageError, ModelError or ModelUnavailable."""
    device = choose_device(settings.device)
    dtype = choose_dtype(settings.dtype, device)
    source = str(shipped_folder(name)) if name in SHIPPED else name
    pipe = _from_pretrained(source, dtype)
    offload = _offload(settings, component_bytes(Path(source).expanduser(), dtype) or _loaded(pipe), device)
    family = family_of(type(pipe).__name__)
    if family is None:
        raise ModelError(
            f"--model {name}: {type(pipe).__name__} is not a pipeline Filmgate runs; known: "
            + ", ".join(known_pipelines())
        )
    apply_quality(pipe, family, settings.quality)
    place(pipe, device, offload)
    if device.type == "cpu":
        use_channels_last(pipe.vae)
    limits = _with_own_defaults(source, read_limits(pipe, family))
    return VideoModel(name, family, pipe, Placement(device, dtype, offload), limits)


def shipped_folder(name: str) -> Path:
    """The diffusers folder of a model that comes with the package."""
    return Path(str(files("filmgate.models") / "shipped" / name))


def use_channels_last(vae: torch.nn.Module) -> None:
    """Convolution weights in the layout a CPU's kernels want; activations follow, the numbers stay."""
    for layer in vae.modules():
        if isinstance(layer, torch.nn.Conv3d):
            layer.weight.data = layer.weight.data.to(memory_format=torch.channels_last_3d)
        elif isinstance(layer, torch.nn.Conv2d):
            layer.weight.data = layer.weight.data.to(memory_format=torch.channels_last)


def place(pipe: Pipeline, device: torch.device, offload: Offload) -> None:
    """Put the pipeline on its device, or under accelerate's hooks."""
    if device.type != "cuda" or offload is Offload.NONE:
        pipe.to(device)
    elif offload is Offload.MODEL:
        pipe.enable_model_cpu_offload(device=device)
    else:
        pipe.enable_sequential_cpu_offload(device=device)


def read_limits(pipe: Pipeline, family: Family) -> ModelLimits:
    """Sizes, lengths and defaults of a pipeline, from its configs and its own signature."""
    transformer = getattr(pipe, "transformer", None)
    patch = getattr(transformer.config, "patch_size", 1) if transformer is not None else 1
    patch = patch[-1] if isinstance(patch, list | tuple) else patch
    spatial = _ratio(pipe, "vae_scale_factor_spatial", "vae_spatial_compression_ratio", 8)
    temporal = _ratio(pipe, "vae_scale_factor_temporal", "vae_temporal_compression_ratio", 1)
    positions = getattr(transformer.config, "rope_max_seq_len", None) if transformer is not None else None
    positions = min(positions or 1024, 1024)
    multiple = max(spatial * patch, 32 if family.name == "ltx" else 16 if family.name != "svd" else 8)
    max_side = min(positions * spatial * patch, 4096) // multiple * multiple
    is_image_model = type(pipe).__name__ == family.image_to_video
    takes_image = is_image_model or family.shares_weights or getattr(pipe.config, "expand_timesteps", False)
    defaults = _read_defaults(pipe, family)
    return ModelLimits(
        size=SizeLimits(defaults.size, multiple, multiple, max_side, max_side * max_side),
        frames=FrameLimits(defaults.frames, temporal, 1, 1, (positions - 1) * temporal + 1),
        fps=Range(defaults.fps, 1, MAX_FPS),
        steps=Range(defaults.steps, 1, MAX_STEPS),
        guidance=Range(defaults.guidance, 0.0, MAX_GUIDANCE),
        sources=frozenset({SourceKind.REMIX} | ({SourceKind.IMAGE} if takes_image else set())),
        needs_image=is_image_model and not family.shares_weights,
    )


class _Defaults(NamedTuple):
    size: Size
    frames: int
    fps: int
    steps: int
    guidance: float


def _read_defaults(pipe: Pipeline, family: Family) -> _Defaults:
    """The defaults diffusers wrote into the pipeline's own signature and configs."""
    arguments = {name: p.default for name, p in inspect.signature(type(pipe).__call__).parameters.items()}
    config: Any = pipe.transformer.config if hasattr(pipe, "transformer") else pipe.unet.config
    spatial = getattr(pipe, "vae_scale_factor_spatial", 8)
    height = arguments["height"] or config.sample_height * spatial
    width = arguments["width"] or config.sample_width * spatial
    frames = arguments["num_frames"] or getattr(config, "sample_frames", 25)
    guidance = arguments.get("guidance_scale", arguments.get("max_guidance_scale", 1.0))
    steps = arguments["num_inference_steps"]
    defaults = _Defaults(Size(width, height), frames, family.fps, steps, float(guidance))
    if getattr(config, "patch_size_t", None) and family.name == "cogvideox":  # CogVideoX 1.5
        return defaults._replace(fps=16)
    if getattr(pipe.config, "expand_timesteps", False):  # Wan 2.2 5B was trained at another size
        return defaults._replace(size=Size(1280, 704), frames=121, fps=24)
    return defaults


def image_pipeline(model: VideoModel) -> Pipeline:
    """The pipeline that takes an image: the model's own, or its image twin on the same weights."""
    import diffusers

    name = model.family.image_to_video
    if name is None or type(model.pipe).__name__ == name:
        return model.pipe
    twin_class = getattr(diffusers, name)
    # Not from_pipe: it casts the shared weights, to float32 unless told otherwise, and to one dtype always.
    parts = {**model.pipe.config, **model.pipe.components}
    twin = twin_class(
        **{part: parts[part] for part in inspect.signature(twin_class).parameters if part in parts}
    )
    twin.set_progress_bar_config(disable=True)
    return twin


def _ratio(pipe: Pipeline, *names_and_default: str | int) -> int:
    *names, default = names_and_default
    return next((int(getattr(pipe, str(n))) for n in names if getattr(pipe, str(n), None)), int(default))


def _from_pretrained(name: str, dtype: torch.dtype) -> Pipeline:
    import diffusers
    import transformers

    for library in (diffusers, transformers):
        library.utils.logging.disable_progress_bar()  # stderr is for our own lines
    folder = Path(name)
    is_local = bool(name) and (folder.exists() or name.startswith((".", "/", "~")))
    if is_local and not (folder.expanduser() / "model_index.json").is_file():
        raise UsageError(
            f"{name} holds no model_index.json, so it is no diffusers pipeline", option="--model"
        )
    if not is_local and name.count("/") != 1:
        raise UsageError(
            f"there is no model {name!r}; use {', '.join(SHIPPED)}, a diffusers folder, "
            "or a hub id such as Wan-AI/Wan2.1-T2V-1.3B-Diffusers",
            option="--model",
        )
    try:
        pipe = diffusers.DiffusionPipeline.from_pretrained(
            str(folder.expanduser()) if is_local else name,
            dtype=dtype,
            use_safetensors=True,
            local_files_only=is_local,
        )
    except Exception as exc:  # diffusers raises errors of every type
        if not is_local and (outage := find_outage(exc)):
            raise ModelUnavailable(f"{outage} from the model hub for {name}; try again later") from exc
        reason = str(exc).partition("\n")[0]
        raise ModelError(f"--model {name} cannot be loaded: {type(exc).__name__}: {reason}") from exc
    pipe.set_progress_bar_config(disable=True)
    return pipe


def _offload(settings: PipelineSettings, sizes: Mapping[str, int], device: torch.device) -> Offload:
    if settings.offload != "auto":
        return Offload(settings.offload)
    return choose_offload(sizes, free_bytes(device)) if device.type == "cuda" else Offload.NONE


def _loaded(pipe: Pipeline) -> dict[str, int]:
    """Bytes of each component: for a hub id, whose files lie wherever the cache put them."""
    parts = ((name, part) for name, part in pipe.components.items() if isinstance(part, torch.nn.Module))
    return {name: sum(weights.nbytes for weights in part.parameters()) for name, part in parts}


def _with_own_defaults(source: str, limits: ModelLimits) -> ModelLimits:
    file = Path(source).expanduser() / DEFAULTS_FILE
    if not file.is_file():
        return limits
    try:
        own = json.loads(file.read_text())
        size = Size(
            own.pop("width", limits.size.default.width), own.pop("height", limits.size.default.height)
        )
        changed = replace(limits, size=replace(limits.size, default=size))
        for name, value in own.items():
            changed = replace(changed, **{name: replace(getattr(limits, name), default=value)})
    except (OSError, ValueError, TypeError, AttributeError) as exc:
        raise ModelError(f"{file} is not usable: {exc}") from exc
    return changed
