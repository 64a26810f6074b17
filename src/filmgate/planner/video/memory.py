"""Device memory of a clip under a placement of its weights.

Weights are exact. Activations and decode buffers are estimates and carry the safety factor.
"""

from dataclasses import dataclass, replace
from typing import Any

from filmgate.catalog.gpus import GIB
from filmgate.catalog.precisions import bytes_per_value
from filmgate.catalog.video_models import VideoModel
from filmgate.jobs import Stage
from filmgate.planner.memory import SAFETY_FACTOR, MemoryBudget, MemoryLine
from filmgate.planner.video.clip import ClipShape
from filmgate.planner.video.work import HALF_BYTES, token_count

CONTEXT_BYTES = 0.56 * GIB
COLLECTIVE_BYTES = 2.0 * GIB
GPU_STAGES = (Stage.TEXT, Stage.DENOISE, Stage.DECODE)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the weights are and in what precision.

    `offload` names what is kept in host memory. "none", "model" (every component until its stage) and
    "layers" (every layer until its turn) are the levels of `pipeline.offload`. "text" (encoders) and
    "cpu_text" (as "model", with the encoders running on the CPU) are those of published runs.
    """

    weights: str = "bf16"
    text_weights: str = "bf16"
    decode_dtype: str = "bf16"
    offload: str = "none"
    is_tiled: bool = False
    gpus: int = 1
    is_sharded: bool = False
    activation_factor: float = 1.0


def budget(
    model: VideoModel, clip: ClipShape, placement: Placement, safety_factor: float = SAFETY_FACTOR
) -> MemoryBudget:
    lines = [
        *_weight_lines(model, placement),
        MemoryLine("denoiser activations", activation_bytes(model, clip, placement), (Stage.DENOISE,), True),
        MemoryLine(
            f"decode buffers, {'tiled' if placement.is_tiled and model.vae.tiled else 'whole frames'}",
            decode_bytes(model, clip, placement),
            (Stage.DECODE,),
            True,
        ),
        MemoryLine("CUDA context and workspaces", CONTEXT_BYTES, GPU_STAGES, False),
    ]
    if placement.gpus > 1:
        lines.append(MemoryLine("collective buffers", COLLECTIVE_BYTES, GPU_STAGES, False))
    return MemoryBudget(tuple(lines), safety_factor)


def _weight_lines(model: VideoModel, placement: Placement) -> list[MemoryLine]:
    """Each component: resident in all stages, or only in its own stage when it is offloaded."""
    shards = placement.gpus if placement.is_sharded else 1
    is_staged = placement.offload in ("model", "cpu_text", "layers")
    if placement.offload == "layers":
        shards *= max(1, model.denoiser.layers)
    text_stages = {"none": GPU_STAGES, "cpu_text": ()}.get(placement.offload, (Stage.TEXT,))
    denoise_stages = (Stage.DENOISE,) if is_staged else GPU_STAGES
    decode_stages = (Stage.DECODE,) if is_staged else GPU_STAGES
    net = model.denoiser
    copies = 1 if is_staged else net.copies
    lines = [
        MemoryLine(
            f"{encoder.id} weights, {placement.text_weights}",
            encoder.params * bytes_per_value(placement.text_weights) / shards,
            text_stages,
            False,
        )
        for encoder in model.text_encoders
    ]
    lines.append(
        MemoryLine(
            f"denoiser weights, {placement.weights}" + (f", {copies} experts" if copies > 1 else ""),
            (net.params * copies + net.extra_params) * bytes_per_value(placement.weights) / shards,
            denoise_stages,
            False,
        )
    )
    vae = model.vae.params * bytes_per_value(placement.decode_dtype)
    lines.append(MemoryLine(f"VAE weights, {placement.decode_dtype}", vae, decode_stages, False))
    return lines


def activation_bytes(model: VideoModel, clip: ClipShape, placement: Placement) -> float:
    """Peak activations of one denoiser forward pass; guidance in one batch doubles them."""
    tokens = token_count(model, clip)
    constant, per_token = model.denoiser.activation_bytes
    branches = min(clip.forwards_per_step, 2) if model.is_guidance_batched else 1
    wide = max(1.0, bytes_per_value(placement.weights) / HALF_BYTES)
    split = placement.gpus
    return (constant + per_token * tokens / split) * branches * wide * placement.activation_factor


def decode_bytes(model: VideoModel, clip: ClipShape, placement: Placement) -> float:
    """Peak buffers of the decoder, whole frames or tiled."""
    vae = model.vae
    wide = bytes_per_value(placement.decode_dtype) / HALF_BYTES
    if placement.is_tiled and vae.tiled:
        return wide * (vae.tiled.fixed_bytes + vae.tiled.bytes_per_pixel * clip.pixels * clip.frames)
    per_pixel, per_frame = vae.peak_fp32 if placement.decode_dtype == "fp32" else vae.peak_bf16
    masks = vae.mask_bytes_per_pixel_pair * clip.pixels**2
    return max(clip.pixels * (per_pixel + per_frame * clip.frames), masks)


def stored_bytes(model: VideoModel) -> float:
    """Bytes of the files of all weights, which are in bf16 whatever the precision in memory."""
    net = model.denoiser
    text = sum(encoder.params for encoder in model.text_encoders)
    return HALF_BYTES * (net.params * net.copies + net.extra_params + text + model.vae.params)


def offloaded_bytes(model: VideoModel, placement: Placement) -> float:
    """Weights that stay in host memory between their stages."""
    text = sum(encoder.params for encoder in model.text_encoders) * bytes_per_value(placement.text_weights)
    if placement.offload == "text":
        return text
    net = model.denoiser
    denoiser = (net.params * net.copies + net.extra_params) * bytes_per_value(placement.weights)
    return text + denoiser + model.vae.params * HALF_BYTES


@dataclass(frozen=True, slots=True)
class PlacementFit:
    """A placement with its name and its budget."""

    name: str
    placement: Placement
    memory: MemoryBudget


def placement_changes(
    model: VideoModel, clip: ClipShape, base: Placement, safety_factor: float = SAFETY_FACTOR
) -> list[PlacementFit]:
    """The budget when a component is offloaded, quantised or tiled."""
    changes = {
        "every component in host memory until its stage": replace(base, offload="model"),
        "every layer in host memory until its turn": replace(base, offload="layers"),
        "text encoder in fp8 (not with Filmgate)": replace(base, text_weights="fp8"),
    }
    if base.weights == "bf16" and model.denoiser.layers:
        changes["denoiser weights in int8 (pipeline.weights)"] = replace(base, weights="int8")
    if model.vae.tiled:
        changes["tiled decode"] = replace(base, is_tiled=True)
        changes["tiled decode, components offloaded"] = replace(base, is_tiled=True, offload="model")
    return [
        PlacementFit(name, placement, budget(model, clip, placement, safety_factor))
        for name, placement in changes.items()
    ]


# From the most to the least memory: the levels of `pipeline.offload`, each with and without tiles. Each step
# costs time, so the first placement that fits is used.
PLACEMENTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("all resident", {}),
    ("tiled decode", {"is_tiled": True}),
    ("components offloaded", {"offload": "model"}),
    ("components offloaded, tiled decode", {"offload": "model", "is_tiled": True}),
    ("layers offloaded", {"offload": "layers"}),
    ("layers offloaded, tiled decode", {"offload": "layers", "is_tiled": True}),
)
RUNTIME_HEADROOM = 1.2
RUNTIME_ACTIVATION_BYTES = 4 * GIB


def lightest_offload(model: VideoModel, placement: Placement, capacity_bytes: float) -> str:
    """The level that `pipeline.offload = auto` uses on a GPU of this size; placements below it do not run."""
    if placement.gpus > 1:
        return "none"
    room = (capacity_bytes - CONTEXT_BYTES - RUNTIME_ACTIVATION_BYTES) / RUNTIME_HEADROOM
    net = model.denoiser
    parts = [encoder.params * bytes_per_value(placement.text_weights) for encoder in model.text_encoders]
    parts += [net.params * bytes_per_value(placement.weights)] * net.copies
    parts += [
        net.extra_params * bytes_per_value(placement.weights),
        model.vae.params * bytes_per_value(placement.decode_dtype),
    ]
    if sum(parts) <= room:
        return "none"
    return "model" if max(parts) <= room else "layers"


def first_fit(
    model: VideoModel,
    clip: ClipShape,
    base: Placement,
    capacity_bytes: float,
    safety_factor: float = SAFETY_FACTOR,
) -> PlacementFit | None:
    """The first of PLACEMENTS that the runtime uses and that fits a GPU, or None. `base` offloads nothing."""
    levels = [change.get("offload", "none") for _, change in PLACEMENTS]
    first = levels.index(lightest_offload(model, base, capacity_bytes))
    for name, change in PLACEMENTS[first:]:
        if "is_tiled" in change and model.vae.tiled is None:
            continue
        placement = replace(base, **change)
        found = budget(model, clip, placement, safety_factor)
        if found.peak_bytes <= capacity_bytes:
            return PlacementFit(name, placement, found)
    return None
