"""VAEs that cannot stream (HunyuanVideo 1.5, Mochi, Cosmos): decode the whole clip, then yield chunks."""

import os
from collections.abc import Iterator, Sequence
from math import prod

import torch
from torch import Tensor

from filmgate.pipeline.decode.base import ClipShape, Rung, Vae, as_single_clip, tile_ladder
from filmgate.pipeline.decode.windowed import tiled
from filmgate.pipeline.wipe import wiping

CHUNK_FRAMES = 8
TILE_PIXELS = (256, 128)
COSMOS_SIGMA_DATA = 0.5  # of its scheduler, which scales latents instead of the VAE


class WholeClipDecoder:
    """Decodes in one call. Memory grows with the length of the clip.

    Latents are divided by `factor`, or by the VAE's own. A VAE that `masks_all_pairs` has an attention mask
    with the square of all latent pixels.
    """

    def __init__(self, vae: Vae, factor: float | None = None, *, masks_all_pairs: bool = False) -> None:
        self._vae = vae
        self._factor = factor
        self._masks_all_pairs = masks_all_pairs

    def to_vae_latents(self, latents: Tensor) -> Tensor:
        config = self._vae.config
        latents = as_single_clip(latents, config.latent_channels)
        factor = config.scaling_factor if self._factor is None else self._factor
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
        can_tile = hasattr(self._vae, "tiled_decode")
        sizes = TILE_PIXELS if can_tile else ()
        return tile_ladder(self.shape(latents), sizes, starts_tiled=can_tile and self._vae.use_tiling)

    def chunks(self, latents: Tensor, rung: Rung) -> Iterator[Tensor]:
        if rung.tile_pixels is None and self._is_host_too_small(latents):
            raise torch.OutOfMemoryError("the masks of the attention do not fit into the memory of the host")
        vae = self._vae if rung.tile_pixels is None else tiled(self._vae, rung.tile_pixels)
        clip = vae.decode(latents, return_dict=False)[0]
        with wiping(clip):
            for part in clip[0].split(CHUNK_FRAMES, dim=1):
                yield part.clamp(-1, 1)

    def _is_host_too_small(self, latents: Tensor) -> bool:
        """HunyuanVideo 1.5 masks all pairs of latent pixels (25 GB at 720p and 121 frames).

        A GPU reports that it is out of memory. On a CPU the process would be killed.
        """
        if not self._masks_all_pairs or latents.device.type != "cpu":
            return False
        pairs = prod(latents.shape[2:]) ** 2
        return pairs * latents.element_size() > available_host_bytes()


def available_host_bytes() -> int:
    """Memory that a process can still take without swapping; macOS reports only all memory."""
    is_known = "SC_AVPHYS_PAGES" in os.sysconf_names
    return os.sysconf("SC_AVPHYS_PAGES" if is_known else "SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def ratios(vae: Vae) -> tuple[int, int]:
    """Temporal and spatial compression of any VAE class."""
    # diffusers warns when a value that exists only in the config is read from the VAE, so look there first.
    holder = vae.config if "spatial_compression_ratio" in vae.config else vae
    return int(holder.temporal_compression_ratio), int(holder.spatial_compression_ratio)
