"""Causal VAEs with a convolution cache (Wan 2.1 and 2.2, CogVideoX): exact, chunk by chunk.

Each clip has its own cache, one per tile. The VAE stores nothing, so several clips can share it.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from filmgate.pipeline.decode.base import ClipShape, Rung, Vae, as_single_clip, tile_ladder
from filmgate.pipeline.decode.tiles import TileGrid
from filmgate.pipeline.wipe import wipe, wiping

Cache = Any
"""What the VAE's layers keep between chunks: tensors in lists or dicts."""

LatentRange = tuple[int, int]
"""The first latent frame of a chunk, and the one after its last."""


class CausalVae(Protocol):
    """How one VAE class is driven: which latent frames form a chunk, and how a chunk is decoded."""

    patch: int  # pixels per decoded value along each side: `finish` unfolds them
    spatial_scale: int  # decoded pixels per latent pixel, before `finish`
    tile_pixels: tuple[int, ...]  # tile sizes of the memory ladder, in pixels after `finish`
    prepares_whole_clip: bool  # `prepare` runs once per clip instead of once per chunk
    starts_tiled: bool  # the VAE was set to use tiles, so whole frames are not tried

    def to_vae_latents(self, latents: Tensor) -> Tensor: ...
    def chunk_ranges(self, latent_frames: int) -> list[LatentRange]: ...
    def frame_count(self, chunk: LatentRange) -> int: ...
    def prepare(self, latents: Tensor) -> Tensor: ...
    def step(self, latents: Tensor, cache: Cache | None) -> tuple[Tensor, Cache]: ...
    def finish(self, frames: Tensor) -> Tensor: ...


class CausalDecoder:
    """Streams any CausalVae in whole frames or tiles."""

    def __init__(self, vae: CausalVae) -> None:
        self._vae = vae

    def to_vae_latents(self, latents: Tensor) -> Tensor:
        return self._vae.to_vae_latents(latents)

    def shape(self, latents: Tensor) -> ClipShape:
        _, _, frames, height, width = latents.shape
        counts = [self._vae.frame_count(chunk) for chunk in self._vae.chunk_ranges(frames)]
        scale = self._vae.spatial_scale * self._vae.patch
        return ClipShape(sum(counts), height * scale, width * scale, max(counts))

    def rungs(self, latents: Tensor) -> Sequence[Rung]:
        starts_tiled, sizes = self._vae.starts_tiled, self._vae.tile_pixels
        return tile_ladder(self.shape(latents), sizes, starts_tiled=starts_tiled, offloads_caches=True)

    def chunks(self, latents: Tensor, rung: Rung) -> Iterator[Tensor]:
        decoded = self._whole(latents) if rung.tile_pixels is None else self._tiled(latents, rung)
        for frames in decoded:
            yield self._vae.finish(frames)[0].clamp_(-1, 1)

    def _cut(self, latents: Tensor) -> Iterator[Tensor]:
        return (latents[:, :, start:stop] for start, stop in self._vae.chunk_ranges(latents.shape[2]))

    def _whole(self, latents: Tensor) -> Iterator[Tensor]:
        # Operations that diffusers runs on the whole clip run on the whole clip here too: on other shapes a
        # CPU may sum in another order, which changes the last bits of the frames.
        if self._vae.prepares_whole_clip:
            return self.decode_whole_frames(self._cut(self._vae.prepare(latents)))
        return self.decode_whole_frames(self._vae.prepare(chunk) for chunk in self._cut(latents))

    def decode_whole_frames(self, chunks: Iterable[Tensor]) -> Iterator[Tensor]:
        """The frames [1, c, n, height, width] of each chunk of prepared latents."""
        cache: Cache | None = None
        try:
            for chunk in chunks:
                frames, cache = self._vae.step(chunk, cache)
                yield frames
        finally:
            wipe(cache)

    def _tiled(self, latents: Tensor, rung: Rung) -> Iterator[Tensor]:
        assert rung.tile_pixels is not None
        scale = self._vae.spatial_scale
        grid = TileGrid.over(latents, rung.tile_pixels // (scale * self._vae.patch), scale)
        caches: dict[int, Cache] = {}
        with wiping(caches):
            for chunk in self._cut(latents):
                tiles = []
                for n, part in enumerate(grid.cut(chunk)):
                    cache = _moved(caches.get(n), chunk.device) if rung.is_cache_offloaded else caches.get(n)
                    frames, cache = self._vae.step(self._vae.prepare(part), cache)
                    caches[n] = _moved(cache, torch.device("cpu")) if rung.is_cache_offloaded else cache
                    tiles.append(frames)
                yield grid.blend(tiles)


def _moved(cache: Cache, device: torch.device) -> Cache:
    """The cache with every tensor on `device`; other entries (None, Wan's "Rep" strings) are unchanged."""
    if isinstance(cache, Tensor):
        return cache.to(device)
    if isinstance(cache, dict):
        return {key: _moved(value, device) for key, value in cache.items()}
    if isinstance(cache, list):
        return [_moved(value, device) for value in cache]
    return cache


class Wan:
    """AutoencoderKLWan: the first latent frame decodes to one frame, every later one to four.

    The first latent frame is a separate chunk, because the decoder treats it differently. Later ones can
    be decoded together.
    """

    tile_pixels: tuple[int, ...] = (256, 128)
    prepares_whole_clip = True

    def __init__(self, vae: Vae, latents_per_chunk: int = 1) -> None:
        from diffusers.models.autoencoders.autoencoder_kl_wan import unpatchify

        self._vae = vae
        self.starts_tiled = vae.use_tiling
        self._latents_per_chunk = latents_per_chunk
        self._unpatchify = unpatchify
        self.patch = vae.config.patch_size or 1
        self.spatial_scale = vae.config.scale_factor_spatial // self.patch
        self._temporal_scale = 2 ** sum(vae.config.temperal_downsample)
        self._cached_layers = vae._cached_conv_counts["decoder"]  # noqa: SLF001 - guarded by tests/contract

    def to_vae_latents(self, latents: Tensor) -> Tensor:
        config = self._vae.config
        latents = as_single_clip(latents, config.z_dim)
        # latents * std + mean per channel, computed as in diffusers' Wan pipeline (same rounding).
        by_channel = (1, latents.shape[1], 1, 1, 1)
        shift = torch.tensor(config.latents_mean, dtype=latents.dtype).view(by_channel).to(latents.device)
        inverse = 1.0 / torch.tensor(config.latents_std, dtype=latents.dtype)
        return latents / inverse.view(by_channel).to(latents.device) + shift

    def chunk_ranges(self, latent_frames: int) -> list[LatentRange]:
        count = self._latents_per_chunk
        later = range(1, latent_frames, count)
        return [(0, 1), *((start, min(start + count, latent_frames)) for start in later)]

    def frame_count(self, chunk: LatentRange) -> int:
        return 1 if chunk[0] == 0 else (chunk[1] - chunk[0]) * self._temporal_scale

    def prepare(self, latents: Tensor) -> Tensor:
        prepared: Tensor = self._vae.post_quant_conv(latents)
        return prepared

    def step(self, latents: Tensor, cache: Cache | None) -> tuple[Tensor, Cache]:
        is_first = cache is None
        cache = [None] * self._cached_layers if cache is None else cache
        frames = self._vae.decoder(latents, feat_cache=cache, feat_idx=[0], first_chunk=is_first)
        return frames, cache

    def finish(self, frames: Tensor) -> Tensor:
        unpatched: Tensor = self._unpatchify(frames, patch_size=self.patch)
        return unpatched


class CogVideoX:
    """AutoencoderKLCogVideoX: two latent frames per chunk; an odd one joins the first chunk."""

    patch = 1
    prepares_whole_clip = False

    def __init__(self, vae: Vae) -> None:
        self._vae = vae
        self.starts_tiled = vae.use_tiling
        self._latents_per_chunk = vae.num_latent_frames_batch_size
        self._temporal_scale = int(vae.config.temporal_compression_ratio)
        self.spatial_scale = 2 ** (len(vae.config.block_out_channels) - 1)
        largest = min(vae.tile_sample_min_height, vae.tile_sample_min_width)
        self.tile_pixels: tuple[int, ...] = (largest, largest // 2)

    def to_vae_latents(self, latents: Tensor) -> Tensor:
        config = self._vae.config
        latents = as_single_clip(latents, config.latent_channels, channel_axis=2)
        return 1 / float(config.scaling_factor) * latents.transpose(1, 2)

    def chunk_ranges(self, latent_frames: int) -> list[LatentRange]:
        count = self._latents_per_chunk
        first = min(count + latent_frames % count, latent_frames)
        starts = range(first, latent_frames, count)
        return [(0, first), *((start, start + count) for start in starts)]

    def frame_count(self, chunk: LatentRange) -> int:
        latent_frames = chunk[1] - chunk[0]
        has_odd_frame = chunk[0] == 0 and latent_frames % 2 == 1
        return latent_frames * self._temporal_scale - (self._temporal_scale - 1) * has_odd_frame

    def prepare(self, latents: Tensor) -> Tensor:
        return latents if self._vae.post_quant_conv is None else self._vae.post_quant_conv(latents)

    def step(self, latents: Tensor, cache: Cache | None) -> tuple[Tensor, Cache]:
        frames, cache = self._vae.decoder(latents, conv_cache=cache)
        return frames, cache

    def finish(self, frames: Tensor) -> Tensor:
        return frames
