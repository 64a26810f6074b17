"""Full-size denoisers and text encoders with random weights, built from their released configs."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from filmgate.errors import UsageError

TEXT_TOKENS = 512
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


@dataclass(frozen=True, slots=True)
class DenoiserRecipe:
    """The arguments of a released Wan transformer and its text encoder, and the compression of its VAE."""

    transformer: dict[str, Any]
    text_encoder: dict[str, Any]
    channels: int = 16
    temporal: int = 4
    spatial: int = 8


DENOISERS = {
    "wan2.1-1.3b": DenoiserRecipe(
        {"num_attention_heads": 12, "attention_head_dim": 128, "ffn_dim": 8960, "num_layers": 30}, UMT5_XXL
    ),
    "wan2.1-14b": DenoiserRecipe(
        {"num_attention_heads": 40, "attention_head_dim": 128, "ffn_dim": 13_824, "num_layers": 40}, UMT5_XXL
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

    def doubled(self) -> "Inputs":
        """A batch of two: the same latents with two different prompts."""
        return Inputs(
            latents=torch.cat([self.latents] * 2),
            timestep=torch.cat([self.timestep] * 2),
            text=torch.cat([self.text, -self.text]),
        )

    def to_dtype(self, dtype: torch.dtype) -> "Inputs":
        return Inputs(self.latents.to(dtype), self.timestep, self.text.to(dtype))


def recipe_of(name: str) -> DenoiserRecipe:
    if name not in DENOISERS:
        raise UsageError(f"unknown denoiser {name!r}; known: {', '.join(DENOISERS)}", option="--model")
    return DENOISERS[name]


def build_denoiser(name: str, device: torch.device, dtype: torch.dtype) -> Any:
    """The transformer in `dtype`, except the modules that diffusers keeps in float32."""
    import diffusers

    torch.manual_seed(0)
    with torch.device(device):
        network = diffusers.WanTransformer3DModel(**recipe_of(name).transformer)
    precise = set(network._keep_in_fp32_modules)  # noqa: SLF001 - checked in tests/benchmarks
    for path, weights in network.named_parameters():
        if precise.isdisjoint(path.split(".")):
            weights.data = weights.data.to(dtype)
    return network.requires_grad_(False).eval()


def build_text_encoder(config: dict[str, Any], device: torch.device, dtype: torch.dtype) -> Any:
    """The text encoder, built on its device: building eleven GiB on a CPU is slow."""
    import transformers

    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            encoder = transformers.UMT5EncoderModel(transformers.UMT5Config(**config))
    finally:
        torch.set_default_dtype(default)
    return encoder.requires_grad_(False).eval()


def check_shape(name: str, size: tuple[int, int], frames: int) -> None:
    """Raises UsageError unless the denoiser supports this size and length."""
    recipe = recipe_of(name)
    step = recipe.spatial * 2  # a token covers 2x2 latents
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
    width, height = size
    length = (frames - 1) // recipe.temporal + 1
    shape = (1, recipe.channels, length, height // recipe.spatial, width // recipe.spatial)
    return Inputs(
        latents=torch.randn(shape, device=device, dtype=dtype),
        timestep=torch.full((1,), 500.0, device=device),
        text=torch.randn(1, TEXT_TOKENS, recipe.text_encoder["d_model"], device=device, dtype=dtype),
    )


def forward_flops(name: str, size: tuple[int, int], frames: int) -> float:
    """Floating-point operations of one pass through the blocks, without embeddings and norms."""
    recipe = recipe_of(name)
    config = recipe.transformer
    width = config["num_attention_heads"] * config["attention_head_dim"]
    length = (frames - 1) // recipe.temporal + 1
    tokens = length * (size[0] // recipe.spatial // 2) * (size[1] // recipe.spatial // 2)
    projections = tokens * (6 * width**2 + 2 * width * config["ffn_dim"]) + TEXT_TOKENS * 2 * width**2
    attention = 2 * width * tokens * (tokens + TEXT_TOKENS)
    return float(2 * config["num_layers"] * (projections + attention))
