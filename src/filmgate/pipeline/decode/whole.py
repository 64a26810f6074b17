"""VAEs that cannot stream (HunyuanVideo 1.5, Mochi, Cosmos): decode the clip at once, then yield chunks."""

import os
from collections.abc import Iterator, Sequence
from math import prod

import torch
from torch import Tensor

from filmgate.pipeline.decode.base import WHOLE_FRAME, ClipShape, Rung, Vae
from filmgate.pipeline.decode.latents import as_single_clip
from filmgate.pipeline.decode.windowed import tiled
from filmgate.pipeline.wipe import wiping

CHUNK_FRAMES = 8
SIGMA_DATA = 0.5  # Cosmos scales latents by its scheduler's sigma_data instead of a VAE factor


class WholeClipDecoder:
    """Decodes in one call. Memory grows with the length of the clip."""

    def __init__(self, vae: Vae) -> None:
        self._vae = vae
        self._can_tile = hasattr(vae, "tiled_decode")

    def to_vae_latents(self, latents: Tensor) -> Tensor:
        config = self._vae.config
        latents = as_single_clip(latents, config.latent_channels)
        factor = SIGMA_DATA if type(self._vae).__name__ == "AutoencoderKLCosmos" else config.scaling_factor
        mean, std = getattr(config, "latents_mean", None), getattr(config, "latents_std", None)
        if mean is None or std is None:
            return latents / factor
        shape = (1, latents.shape[1], -1, 1, 1)  # Cosmos has one value per channel and latent frame
        shift = torch.tensor(mean).view(shape)[:, :, : latents.shape[2]].to(latents)
        width = torch.tensor(std).view(shape)[:, :, : latents.shape[2]].to(latents)
        return latents * width / factor + shift

    def shape(self, latents: Tensor) -> ClipShape:
        _, _, frames, height, width = latents.shape
        temporal, spatial = ratios(self._vae)
        count = (frames - 1) * temporal + 1
        return ClipShape(count, height * spatial, width * spatial, min(CHUNK_FRAMES, count))

    def rungs(self, latents: Tensor) -> Sequence[Rung]:
        if not self._can_tile:
            return [WHOLE_FRAME]
        shape = self.shape(latents)
        tiles = [Rung(f"{n} px tiles", n) for n in (256, 128) if n < max(shape.height, shape.width)]
        starts_tiled = bool(tiles) and (self._vae.use_tiling or self._is_host_too_small(latents))
        return tiles if starts_tiled else [WHOLE_FRAME, *tiles]

    def chunks(self, latents: Tensor, rung: Rung) -> Iterator[Tensor]:
        vae = self._vae if rung.tile_pixels is None else tiled(self._vae, rung.tile_pixels)
        clip = vae.decode(latents, return_dict=False)[0]
        with wiping(clip):
            for part in clip[0].split(CHUNK_FRAMES, dim=1):
                yield part.clamp(-1, 1)

    def _is_host_too_small(self, latents: Tensor) -> bool:
        """HunyuanVideo 1.5 masks all pairs of latent pixels (25 GB at 720p and 121 frames).

        A GPU reports that it is out of memory, and the ladder goes on. On a CPU the process would be killed.
        """
        has_masks = type(self._vae).__name__ == "AutoencoderKLHunyuanVideo15"
        if not has_masks or latents.device.type != "cpu":
            return False
        pairs = prod(latents.shape[2:]) ** 2
        return pairs * latents.element_size() > available_host_bytes()


def available_host_bytes() -> int:
    """Memory that a process can still take without swapping."""
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def ratios(vae: Vae) -> tuple[int, int]:
    """Temporal and spatial compression of any VAE class."""
    # diffusers warns when a value that exists only in the config is read from the VAE, so look there first.
    holder = vae.config if "spatial_compression_ratio" in vae.config else vae
    return int(holder.temporal_compression_ratio), int(holder.spatial_compression_ratio)
