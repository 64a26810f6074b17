"""Small random-weight VAEs, at least one for every decoder."""

from typing import Any

import diffusers
import torch

from filmgate.pipeline.bench.vaes import TINY_COGVIDEOX

WAN21 = {
    "base_dim": 8,
    "z_dim": 4,
    "dim_mult": [1, 2, 2, 2],
    "num_res_blocks": 1,
    "latents_mean": [0.1, -0.2, 0.3, 0.0],
    "latents_std": [1.1, 0.9, 1.3, 1.0],
}
WAN22 = {
    "base_dim": 8,
    "decoder_base_dim": 8,
    "z_dim": 8,
    "dim_mult": [1, 2, 2, 2],
    "num_res_blocks": 1,
    "is_residual": True,
    "in_channels": 12,
    "out_channels": 12,
    "patch_size": 2,
    "scale_factor_spatial": 16,
    "latents_mean": [0.05 * n for n in range(8)],
    "latents_std": [1.0 + 0.1 * n for n in range(8)],
}
COGVIDEOX = TINY_COGVIDEOX | {"sample_height": 64, "sample_width": 64}
LTX = {
    "latent_channels": 8,
    "block_out_channels": (8, 8, 8, 8),
    "decoder_block_out_channels": (8, 8, 8, 8),
    "layers_per_block": (1, 1, 1, 1, 1),
    "decoder_layers_per_block": (1, 1, 1, 1, 1),
    "spatio_temporal_scaling": (True, True, True, False),
    "decoder_spatio_temporal_scaling": (True, True, True, False),
    "patch_size": 4,
    "patch_size_t": 1,
}
LTX_095 = {
    "latent_channels": 8,
    "block_out_channels": (8, 8, 8, 8, 8),
    "down_block_types": ("LTXVideo095DownBlock3D",) * 4,
    "decoder_block_out_channels": (8, 16, 32),  # each doubles, to match upsample_factor
    "layers_per_block": (1, 1, 1, 1, 1),
    "decoder_layers_per_block": (1, 1, 1, 1),
    "spatio_temporal_scaling": (True,) * 4,
    "decoder_spatio_temporal_scaling": (True,) * 3,
    "decoder_inject_noise": (False,) * 4,
    "downsample_type": ("spatial", "temporal", "spatiotemporal", "spatiotemporal"),
    "upsample_residual": (True,) * 3,
    "upsample_factor": (2, 2, 2),
    "timestep_conditioning": True,
    "spatial_compression_ratio": 32,
    "temporal_compression_ratio": 8,
}
HUNYUANVIDEO = {
    "latent_channels": 4,
    "block_out_channels": (8, 8, 8, 8),
    "layers_per_block": 1,
    "norm_num_groups": 2,
}
SVD = {
    "block_out_channels": (32, 32, 32, 32),
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "latent_channels": 4,
    "layers_per_block": 1,
}
HUNYUANVIDEO15 = {
    "latent_channels": 4,
    "block_out_channels": (16, 16, 16, 16, 16),
    "layers_per_block": 1,
}
MOCHI = {
    "latent_channels": 4,
    "encoder_block_out_channels": (32, 32, 32, 32),
    "decoder_block_out_channels": (32, 32, 32, 32),
    "layers_per_block": (1, 1, 1, 1, 1),
    "latents_mean": [0.1] * 4,
    "latents_std": [0.9] * 4,
}
COSMOS = {
    "latent_channels": 4,
    "encoder_block_out_channels": (8, 8, 8, 8),
    "decode_block_out_channels": (8, 8, 8, 8),
    "attention_resolutions": (8,),
    "resolution": 64,
    "num_layers": 1,
    "latents_mean": [0.01 * n for n in range(4 * 16)],
    "latents_std": [1.0 + 0.01 * n for n in range(4 * 16)],
}

TIME_FIRST = ("cogvideox", "svd")
RECIPES = {
    "wan2.1": ("AutoencoderKLWan", WAN21),
    "wan2.2": ("AutoencoderKLWan", WAN22),
    "cogvideox": ("AutoencoderKLCogVideoX", COGVIDEOX),
    "ltx": ("AutoencoderKLLTXVideo", LTX),
    "ltx-0.9.5": ("AutoencoderKLLTXVideo", LTX_095),
    "hunyuanvideo": ("AutoencoderKLHunyuanVideo", HUNYUANVIDEO),
    "svd": ("AutoencoderKLTemporalDecoder", SVD),
    "hunyuanvideo1.5": ("AutoencoderKLHunyuanVideo15", HUNYUANVIDEO15),
    "mochi": ("AutoencoderKLMochi", MOCHI),
    "cosmos": ("AutoencoderKLCosmos", COSMOS),
}


def build_vae(name: str, **changed: Any) -> Any:
    """The VAE `name` in eval mode, with the same weights at every call."""
    class_name, config = RECIPES[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return getattr(diffusers, class_name)(**config | changed).eval()


def draw_latents(name: str, vae: Any, frames: int = 3, size: tuple[int, int] = (2, 3), seed: int = 0) -> Any:
    """Latents in the layout of the family's pipeline; CogVideoX and SVD have time before channels."""
    channels = getattr(vae.config, "z_dim", None) or vae.config.latent_channels
    shape = (1, frames, channels, *size) if name in TIME_FIRST else (1, channels, frames, *size)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
