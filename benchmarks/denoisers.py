"""Full-size denoisers and text encoders with random weights, built from their released configs."""

from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor

from filmgate.errors import UsageError
from filmgate.pipeline.loading.families.base import Family
from filmgate.pipeline.loading.families.cogvideox import CogVideoX
from filmgate.pipeline.loading.families.ltx import Ltx
from filmgate.pipeline.loading.families.wan import Wan

TINY_TEXT = {"vocab_size": 384, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
UMT5_XXL = {
    "vocab_size": 256_384,
    "d_model": 4096,
    "d_kv": 64,
    "d_ff": 10_240,
    "num_layers": 24,
    "num_heads": 64,
    "feed_forward_proj": "gated-gelu",
}
T5_XXL = UMT5_XXL | {"vocab_size": 32_128}


@dataclass(frozen=True, slots=True)
class DenoiserRecipe:
    """The arguments of a released transformer and its text encoder, and the compression of its VAE."""

    transformer: dict[str, Any]
    text_encoder: dict[str, Any]
    channels: int = 16
    temporal: int = 4
    spatial: int = 8
    family: Family = field(default_factory=Wan)
    classes: tuple[str, str] = ("WanTransformer3DModel", "UMT5EncoderModel")
    patch: int = 2  # a token covers patch x patch latents
    text_tokens: int = 512

    @property
    def width(self) -> int:
        width: int = self.transformer["num_attention_heads"] * self.transformer["attention_head_dim"]
        return width

    def latents(self, size: tuple[int, int], frames: int) -> tuple[int, int, int]:
        """Frames, rows and columns."""
        width, height = size
        return (frames - 1) // self.temporal + 1, height // self.spatial, width // self.spatial

    def tokens(self, size: tuple[int, int], frames: int) -> int:
        return prod(self.latents(size, frames)) // self.patch**2


DENOISERS = {
    "wan2.1-1.3b": DenoiserRecipe(
        {"num_attention_heads": 12, "attention_head_dim": 128, "ffn_dim": 8960, "num_layers": 30}, UMT5_XXL
    ),
    "wan2.1-14b": DenoiserRecipe(
        {"num_attention_heads": 40, "attention_head_dim": 128, "ffn_dim": 13_824, "num_layers": 40}, UMT5_XXL
    ),
    "ltx-2b": DenoiserRecipe(
        {"num_attention_heads": 32, "attention_head_dim": 64, "num_layers": 28},
        T5_XXL,
        channels=128,
        temporal=8,
        spatial=32,
        family=Ltx(),
        classes=("LTXVideoTransformer3DModel", "T5EncoderModel"),
        patch=1,
        text_tokens=128,
    ),
    "cogvideox-2b": DenoiserRecipe(
        {"num_attention_heads": 30, "attention_head_dim": 64, "num_layers": 30},
        T5_XXL,
        family=CogVideoX(),
        classes=("CogVideoXTransformer3DModel", "T5EncoderModel"),
        text_tokens=226,
    ),
    "cogvideox-5b": DenoiserRecipe(
        {
            "num_attention_heads": 48,
            "attention_head_dim": 64,
            "num_layers": 42,
            "use_rotary_positional_embeddings": True,
        },
        T5_XXL,
        family=CogVideoX(),
        classes=("CogVideoXTransformer3DModel", "T5EncoderModel"),
        text_tokens=226,
    ),
    "wan-tiny": DenoiserRecipe(
        {
            "num_attention_heads": 2,
            "attention_head_dim": 12,
            "in_channels": 4,
            "out_channels": 4,
            "text_dim": 32,
            "freq_dim": 32,
            "ffn_dim": 32,
            "num_layers": 2,
        },
        TINY_TEXT,
        channels=4,
    ),
}


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs of one forward pass."""

    latents: Tensor
    timestep: Tensor
    text: Tensor
    others: dict[str, Any] = field(default_factory=dict)

    def doubled(self) -> "Inputs":
        """A batch of two: the same latents with two different prompts."""
        return Inputs(
            latents=torch.cat([self.latents] * 2),
            timestep=torch.cat([self.timestep] * 2),
            text=torch.cat([self.text, -self.text]),
            others={
                name: torch.cat([value] * 2) if isinstance(value, Tensor) else value
                for name, value in self.others.items()
            },
        )

    def to_dtype(self, dtype: torch.dtype) -> "Inputs":
        return Inputs(self.latents.to(dtype), self.timestep, self.text.to(dtype), self.others)


def recipe_of(name: str) -> DenoiserRecipe:
    if name not in DENOISERS:
        raise UsageError(f"unknown denoiser {name!r}; known: {', '.join(DENOISERS)}", option="--model")
    return DENOISERS[name]


def build_denoiser(name: str, device: torch.device, dtype: torch.dtype) -> Any:
    """The transformer in `dtype`, except the modules that diffusers keeps in float32."""
    import diffusers

    torch.manual_seed(0)
    recipe = recipe_of(name)
    with torch.device(device):
        network = getattr(diffusers, recipe.classes[0])(**recipe.transformer)
    precise = set(network._keep_in_fp32_modules or ())  # noqa: SLF001 - checked in tests/benchmarks
    for path, weights in network.named_parameters():
        if precise.isdisjoint(path.split(".")):
            weights.data = weights.data.to(dtype)
    return network.requires_grad_(False).eval()


def build_text_encoder(recipe: DenoiserRecipe, device: torch.device, dtype: torch.dtype) -> Any:
    """The text encoder, built on its device: building eleven GiB on a CPU is slow."""
    import transformers

    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            build = getattr(transformers, recipe.classes[1])
            encoder = build(build.config_class(**recipe.text_encoder))
    finally:
        torch.set_default_dtype(default)
    return encoder.requires_grad_(False).eval()


def check_shape(name: str, size: tuple[int, int], frames: int) -> None:
    """Raises UsageError unless the denoiser supports this size and length."""
    recipe = recipe_of(name)
    step = recipe.spatial * recipe.patch
    if any(side % step or side == 0 for side in size):
        raise UsageError(f"the width and height of {name} must be multiples of {step}", option="--size")
    if frames < 1 or (frames - 1) % recipe.temporal:
        raise UsageError(
            f"the number of frames of {name} must be a multiple of {recipe.temporal} plus 1",
            option="--frames",
        )


def draw_inputs(
    name: str, size: tuple[int, int], frames: int, device_and_dtype: tuple[torch.device, torch.dtype]
) -> Inputs:
    """Random inputs of the right shape."""
    recipe, (device, dtype) = recipe_of(name), device_and_dtype
    frames, rows, columns = recipe.latents(size, frames)
    shapes = {
        "wan": (1, recipe.channels, frames, rows, columns),
        "ltx": (1, frames * rows * columns, recipe.channels),
        "cogvideox": (1, frames, recipe.channels, rows, columns),
    }
    latents = torch.randn(shapes[recipe.family.name], device=device, dtype=dtype)
    text = torch.randn(1, recipe.text_tokens, recipe.text_encoder["d_model"], device=device, dtype=dtype)
    others: dict[str, Any] = {}
    if recipe.family.name == "ltx":
        others = {"num_frames": frames, "height": rows, "width": columns}
        others["rope_interpolation_scale"] = (recipe.temporal / recipe.family.fps, *[recipe.spatial] * 2)
        others["encoder_attention_mask"] = torch.ones(1, recipe.text_tokens, device=device)
    if recipe.transformer.get("use_rotary_positional_embeddings"):
        pairs = recipe.transformer["attention_head_dim"] // 2
        angles = torch.rand(prod((frames, rows, columns)) // 4, pairs, device=device) * 6
        angles = angles.repeat_interleave(2, dim=1)
        others["image_rotary_emb"] = (angles.cos(), angles.sin())
    return Inputs(latents, torch.full((1,), 500.0, device=device), text, others)


def forward_flops(name: str, size: tuple[int, int], frames: int) -> float:
    """Floating-point operations of one pass through the blocks, without embeddings and norms."""
    recipe = recipe_of(name)
    width, tokens, text = recipe.width, recipe.tokens(size, frames), recipe.text_tokens
    hidden = recipe.transformer.get("ffn_dim", 4 * width)
    if recipe.family.name == "cogvideox":  # the text is part of the sequence
        tokens += text
        projections = tokens * (4 * width**2 + 2 * width * hidden)
        attention = 2 * width * tokens * tokens
    else:
        projections = tokens * (6 * width**2 + 2 * width * hidden) + text * 2 * width**2
        attention = 2 * width * tokens * (tokens + text)
    return float(2 * recipe.transformer["num_layers"] * (projections + attention))
