"""Device memory of a clip, line by line, and which stage is the peak.

Weights are exact; what the planner estimates (activations, decode buffers) carries the safety factor.
"""

from dataclasses import dataclass, replace
from typing import Any

from filmgate.catalog.video_models import VideoModel
from filmgate.planner.video.work import BYTES, Clip, Stage, token_count

GIB = 1 << 30
CONTEXT_BYTES = 0.56 * GIB
COLLECTIVE_BYTES = 2.0 * GIB
SAFETY_FACTOR = 1.2


@dataclass(frozen=True, slots=True)
class Placement:
    """Where weights live and in what precision.

    `offload`: none; text (encoders wait on the host); model (every component does, until its stage); cpu_text
    (as model, and the encoders run on the CPU).
    """

    weights: str = "bf16"
    text_weights: str = "bf16"
    decode_dtype: str = "bf16"
    offload: str = "none"
    is_tiled: bool = False
    gpus: int = 1
    is_sharded: bool = False
    activation_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class MemoryLine:
    """One line of the budget; `stages` are those it is resident in."""

    name: str
    bytes: float
    stages: tuple[Stage, ...]
    is_estimate: bool
    note: str = ""


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """All lines of one placement; the safety factor covers estimates only."""

    lines: tuple[MemoryLine, ...]
    safety_factor: float

    def stage_bytes(self, stage: Stage) -> float:
        return sum(self._charged(line) for line in self.lines if stage in line.stages)

    @property
    def peak_stage(self) -> Stage:
        return max(Stage, key=self.stage_bytes)

    @property
    def peak_bytes(self) -> float:
        return self.stage_bytes(self.peak_stage)

    def _charged(self, line: MemoryLine) -> float:
        return line.bytes * (self.safety_factor if line.is_estimate else 1.0)


ALL = tuple(Stage)


def budget(
    model: VideoModel, clip: Clip, placement: Placement, safety_factor: float = SAFETY_FACTOR
) -> MemoryBudget:
    """The budget of one GPU under one placement."""
    lines = [
        *_weight_lines(model, placement),
        MemoryLine("denoiser activations", activation_bytes(model, clip, placement), (Stage.DENOISE,), True),
        MemoryLine(
            f"decode buffers, {'tiled' if placement.is_tiled and model.vae.tiled else 'whole frames'}",
            decode_bytes(model, clip, placement),
            (Stage.DECODE,),
            True,
        ),
        MemoryLine("CUDA context and workspaces", CONTEXT_BYTES, ALL, False),
    ]
    if placement.gpus > 1:
        lines.append(MemoryLine("collective buffers", COLLECTIVE_BYTES, ALL, False))
    return MemoryBudget(tuple(lines), safety_factor)


def _weight_lines(model: VideoModel, placement: Placement) -> list[MemoryLine]:
    """Each component, resident always, or in its own stage only where it is offloaded."""
    shards = placement.gpus if placement.is_sharded else 1
    is_staged = placement.offload in ("model", "cpu_text")
    text_stages = {"none": ALL, "cpu_text": ()}.get(placement.offload, (Stage.TEXT,))
    denoise_stages = (Stage.DENOISE,) if is_staged else ALL
    decode_stages = (Stage.DECODE,) if is_staged else ALL
    net = model.denoiser
    copies = 1 if is_staged else net.copies
    lines = [
        MemoryLine(
            f"{encoder.id} weights, {placement.text_weights}",
            encoder.params * BYTES[placement.text_weights] / shards,
            text_stages,
            False,
        )
        for encoder in model.text_encoders
    ]
    lines.append(
        MemoryLine(
            f"denoiser weights, {placement.weights}" + (f", {copies} experts" if copies > 1 else ""),
            (net.params * copies + net.extra_params) * BYTES[placement.weights] / shards,
            denoise_stages,
            False,
        )
    )
    vae = model.vae.params * BYTES[placement.decode_dtype]
    lines.append(MemoryLine(f"VAE weights, {placement.decode_dtype}", vae, decode_stages, False))
    return lines


def activation_bytes(model: VideoModel, clip: Clip, placement: Placement) -> float:
    """What one denoiser forward holds at its peak; guidance in one batch holds it twice."""
    tokens = token_count(model, clip)
    constant, per_token = model.denoiser.activation_bytes
    branches = min(clip.forwards_per_step, 2) if model.is_guidance_batched else 1
    wide = max(1.0, BYTES[placement.weights] / BYTES["bf16"])
    split = placement.gpus
    return (constant + per_token * tokens / split) * branches * wide * placement.activation_factor


def decode_bytes(model: VideoModel, clip: Clip, placement: Placement) -> float:
    """What the decoder holds at its peak, whole or tiled."""
    vae = model.vae
    wide = BYTES[placement.decode_dtype] / BYTES["bf16"]
    if placement.is_tiled and vae.tiled:
        return wide * (vae.tiled.fixed_bytes + vae.tiled.bytes_per_pixel * clip.pixels * clip.frames)
    per_pixel, per_frame = vae.peak_fp32 if placement.decode_dtype == "fp32" else vae.peak_bf16
    return max(
        clip.pixels * (per_pixel + per_frame * clip.frames), vae.mask_bytes_per_pixel_pair * clip.pixels**2
    )


@dataclass(frozen=True, slots=True)
class Lever:
    """One change to the placement, and the peak it leaves."""

    name: str
    placement: Placement
    peak_bytes: float
    peak_stage: Stage


def levers(
    model: VideoModel, clip: Clip, base: Placement, safety_factor: float = SAFETY_FACTOR
) -> list[Lever]:
    """What the peak becomes if a component is offloaded, quantised or tiled."""
    changes = {
        "text encoder on the host": replace(base, offload="text"),
        "every component on the host until its stage": replace(base, offload="model"),
        "denoiser in fp8": replace(base, weights="fp8"),
        "text encoder in fp8": replace(base, text_weights="fp8"),
    }
    if model.vae.tiled:
        changes["decode in tiles"] = replace(base, is_tiled=True)
        changes["decode in tiles, components offloaded"] = replace(base, is_tiled=True, offload="model")
    found = []
    for name, placement in changes.items():
        after = budget(model, clip, placement, safety_factor)
        found.append(Lever(name, placement, after.peak_bytes, after.peak_stage))
    return found


# From roomy to tight; the first rung that fits is taken, since each further one costs time.
RUNGS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("all resident", {}),
    ("text encoder offloaded", {"offload": "text"}),
    ("tiled decode", {"is_tiled": True}),
    ("text encoder offloaded, tiled decode", {"offload": "text", "is_tiled": True}),
    ("components offloaded", {"offload": "model"}),
    ("components offloaded, tiled decode", {"offload": "model", "is_tiled": True}),
)


def first_fit(
    model: VideoModel,
    clip: Clip,
    base: Placement,
    capacity_bytes: float,
    safety_factor: float = SAFETY_FACTOR,
) -> tuple[str, Placement, MemoryBudget] | None:
    """The roomiest placement that fits a GPU, or None."""
    for name, change in RUNGS:
        if "is_tiled" in change and model.vae.tiled is None:
            continue
        placement = replace(base, **change)
        found = budget(model, clip, placement, safety_factor)
        if found.peak_bytes <= capacity_bytes:
            return name, placement, found
    return None
