"""Full-size VAEs from released configurations with random weights: real time and memory, no download."""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from filmgate.errors import UsageError
from filmgate.pipeline.decode.base import Vae
from filmgate.pipeline.loading.families.base import Compression


@dataclass(frozen=True, slots=True)
class VaeRecipe:
    """A diffusers VAE class, its configuration and its compression."""

    class_name: str
    channels: int
    temporal: int
    spatial: int
    is_time_first: bool = False  # pipeline latents are [batch, time, channels, ...]
    config: dict[str, Any] = field(default_factory=dict)


WAN22 = {
    "base_dim": 160,
    "decoder_base_dim": 256,
    "z_dim": 48,
    "is_residual": True,
    "in_channels": 12,
    "out_channels": 12,
    "patch_size": 2,
    "scale_factor_spatial": 16,
    "latents_mean": [0.0] * 48,
    "latents_std": [1.0] * 48,
}
TINY_WAN = {
    "base_dim": 8,
    "z_dim": 4,
    "dim_mult": [1, 2, 2, 2],
    "num_res_blocks": 1,
    "latents_mean": [0.0] * 4,
    "latents_std": [1.0] * 4,
}
TINY_COGVIDEOX = {
    "down_block_types": ("CogVideoXDownBlock3D",) * 4,
    "up_block_types": ("CogVideoXUpBlock3D",) * 4,
    "block_out_channels": (8, 8, 8, 8),
    "latent_channels": 4,
    "layers_per_block": 1,
    "norm_num_groups": 2,
}

VAES = {
    "wan2.1": VaeRecipe("AutoencoderKLWan", 16, 4, 8),
    "wan2.2": VaeRecipe("AutoencoderKLWan", 48, 4, 16, config=WAN22),
    "cogvideox": VaeRecipe("AutoencoderKLCogVideoX", 16, 4, 8, is_time_first=True),
    "ltx": VaeRecipe("AutoencoderKLLTXVideo", 128, 8, 32),
    "hunyuanvideo": VaeRecipe("AutoencoderKLHunyuanVideo", 16, 4, 8),
    "wan-tiny": VaeRecipe("AutoencoderKLWan", 4, 4, 8, config=TINY_WAN),
    "cogvideox-tiny": VaeRecipe("AutoencoderKLCogVideoX", 4, 4, 8, is_time_first=True, config=TINY_COGVIDEOX),
}


def build_vae(name: str, device: torch.device, dtype: torch.dtype) -> Vae:
    """The VAE on `device`, in eval mode, with the same weights on every call."""
    import diffusers

    recipe = recipe_of(name)
    default = torch.get_default_dtype()
    torch.manual_seed(0)
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            vae = getattr(diffusers, recipe.class_name)(**recipe.config)
    finally:
        torch.set_default_dtype(default)
    return vae.to(device).eval()


def random_latents(name: str, size: tuple[int, int], frames: int, vae: Vae) -> Tensor:
    """Random pipeline latents for a clip of this size, different on every call."""
    return draw_latents(recipe_of(name), size, frames, vae)


def draw_latents(recipe: VaeRecipe, size: tuple[int, int], frames: int, vae: Vae) -> Tensor:
    """As `random_latents`, for any VAE. Raises UsageError for a size or length that it cannot decode."""
    width, height = size
    if min(size) < 1 or width % recipe.spatial or height % recipe.spatial:
        raise UsageError(
            f"width and height must be positive multiples of {recipe.spatial} for this VAE", option="--size"
        )
    if (frames - 1) % recipe.temporal:
        raise UsageError(
            f"the number of frames must be a multiple of {recipe.temporal}, plus 1, for this VAE",
            option="--frames",
        )
    length = (frames - 1) // recipe.temporal + 1
    shape = [1, recipe.channels, length, height // recipe.spatial, width // recipe.spatial]
    if recipe.is_time_first:
        shape[1], shape[2] = shape[2], shape[1]
    return torch.randn(shape, device=vae.device, dtype=vae.dtype)


def recipe_of(name: str) -> VaeRecipe:
    if name not in VAES:
        raise UsageError(f"unknown VAE {name!r}; choose one of: {', '.join(VAES)}", option="--vae")
    return VAES[name]


def recipe_like(vae: Vae, compression: Compression) -> VaeRecipe:
    """The recipe of a model's VAE. Raises UsageError for a class without a recipe."""
    name = type(vae).__name__
    known = next((recipe for recipe in VAES.values() if recipe.class_name == name), None)
    if known is None:
        classes = ", ".join(sorted({recipe.class_name for recipe in VAES.values()}))
        raise UsageError(f"this benchmark does not measure {name}; it measures {classes}", option="--model")
    channels = getattr(vae.config, "z_dim", None) or vae.config.latent_channels
    return replace(known, channels=channels, temporal=compression.temporal, spatial=compression.spatial)
