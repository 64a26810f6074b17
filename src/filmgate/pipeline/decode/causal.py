"""Causal VAEs with a convolution cache (Wan 2.1 and 2.2, CogVideoX): exact, chunk by chunk.

Each stream owns its cache, one per tile, so nothing is kept on the VAE and two clips can share it.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from filmgate.pipeline.decode.base import WHOLE_FRAME, ClipShape, Rung, Vae
from filmgate.pipeline.decode.latents import shift_and_scale, single
from filmgate.pipeline.decode.tiles import TileGrid

Cache = Any
"""Whatever the VAE's own layers keep between chunks: tensors in lists or dicts."""

OVERLAP = 4  # a tile overlaps its neighbour by a quarter, as diffusers' 256/192 does


class CausalVae(Protocol):
    """How one family is driven: which latent frames go together, and what one step does with its cache."""

    spatial_scale: int  # decoded pixels per latent pixel, before `finish`
    tile_pixels: tuple[int, ...]  # tile sizes worth trying, in finished pixels
    prepares_clip: bool  # `prepare` runs once on the latents of a clip, not once per span

    def to_vae_latents(self, latents: Tensor) -> Tensor: ...
    def spans(self, latent_frames: int) -> list[tuple[int, int]]: ...
    def frames_of(self, span: tuple[int, int]) -> int: ...
    def prepare(self, latents: Tensor) -> Tensor: ...
    def step(self, latents: Tensor, cache: Cache | None) -> tuple[Tensor, Cache]: ...
    def finish(self, frames: Tensor) -> Tensor: ...


class CausalDecoder:
    """Streams any CausalVae, whole frames or tiles."""

    def __init__(self, family: CausalVae, patch: int = 1, *, starts_tiled: bool = False) -> None:
        self._family = family
        self._patch = patch
        self._starts_tiled = starts_tiled

    def to_vae_latents(self, latents: Tensor) -> Tensor:
        return self._family.to_vae_latents(latents)

    def shape(self, latents: Tensor) -> ClipShape:
        _, _, frames, height, width = latents.shape
        counts = [self._family.frames_of(span) for span in self._family.spans(frames)]
        scale = self._family.spatial_scale * self._patch
        return ClipShape(sum(counts), height * scale, width * scale, max(counts))

    def rungs(self, latents: Tensor) -> Sequence[Rung]:
        shape = self.shape(latents)
        tiled = [
            Rung(f"{size} px tiles" + (", caches on the host" if n else ""), size, is_parked=n > 0)
            for n, size in enumerate(self._family.tile_pixels)
            if size < max(shape.height, shape.width)
        ]
        return tiled if self._starts_tiled and tiled else [WHOLE_FRAME, *tiled]

    def chunks(self, latents: Tensor, rung: Rung) -> Iterator[Tensor]:
        decoded = self._whole(latents) if rung.tile_pixels is None else self._tiled(latents, rung)
        for frames in decoded:
            yield self._family.finish(frames)[0].clamp_(-1, 1)

    def _cut(self, latents: Tensor) -> Iterator[Tensor]:
        return (latents[:, :, start:stop] for start, stop in self._family.spans(latents.shape[2]))

    def _whole(self, latents: Tensor) -> Iterator[Tensor]:
        # Where diffusers runs an operation on the whole clip, so do we: on other shapes a CPU may add up in
        # another order, and the frames would differ in their last bits.
        family = self._family
        if family.prepares_clip:
            return self.whole_frames(self._cut(family.prepare(latents)))
        return self.whole_frames(family.prepare(span) for span in self._cut(latents))

    def whole_frames(self, spans: Iterable[Tensor]) -> Iterator[Tensor]:
        """The frames of each prepared span, [1, c, n, height, width]."""
        cache: Cache | None = None
        for span in spans:
            frames, cache = self._family.step(span, cache)
            yield frames

    def _tiled(self, latents: Tensor, rung: Rung) -> Iterator[Tensor]:
        assert rung.tile_pixels is not None
        scale = self._family.spatial_scale
        tile = rung.tile_pixels // (scale * self._patch)
        height, width = latents.shape[-2:]
        grid = TileGrid(height, width, tile, tile - max(tile // OVERLAP, 1), scale)
        caches: dict[int, Cache] = {}
        for span in self._cut(latents):
            tiles = []
            for n, part in enumerate(grid.cut(span)):
                cache = _moved(caches.get(n), span.device) if rung.is_parked else caches.get(n)
                frames, cache = self._family.step(self._family.prepare(part), cache)
                caches[n] = _moved(cache, torch.device("cpu")) if rung.is_parked else cache
                tiles.append(frames)
            yield grid.blend(tiles)


def _moved(cache: Cache, device: torch.device) -> Cache:
    """The cache with every tensor on `device`; other entries (None, Wan's "Rep" marks) pass through."""
    if isinstance(cache, Tensor):
        return cache.to(device)
    if isinstance(cache, dict):
        return {key: _moved(value, device) for key, value in cache.items()}
    if isinstance(cache, list):
        return [_moved(value, device) for value in cache]
    return cache


class Wan:
    """AutoencoderKLWan: the first latent frame is one frame, every later one four.

    The first goes alone, since it takes another way through the decoder; later ones may go together.
    """

    tile_pixels: tuple[int, ...] = (256, 128)
    prepares_clip = True

    def __init__(self, vae: Vae, latents_per_chunk: int = 1) -> None:
        from diffusers.models.autoencoders.autoencoder_kl_wan import unpatchify

        self._vae = vae
        self._latents_per_chunk = latents_per_chunk
        self._unpatchify = unpatchify
        self.patch = vae.config.patch_size or 1
        self.spatial_scale = vae.config.scale_factor_spatial // self.patch
        self._temporal_scale = 2 ** sum(vae.config.temperal_downsample)
        self._cached_layers = vae._cached_conv_counts["decoder"]  # noqa: SLF001 - guarded by tests/contract

    def to_vae_latents(self, latents: Tensor) -> Tensor:
        config = self._vae.config
        latents = single(latents, config.z_dim)
        return shift_and_scale(latents, mean=config.latents_mean, std=config.latents_std)

    def spans(self, latent_frames: int) -> list[tuple[int, int]]:
        together = self._latents_per_chunk
        later = range(1, latent_frames, together)
        return [(0, 1), *((start, min(start + together, latent_frames)) for start in later)]

    def frames_of(self, span: tuple[int, int]) -> int:
        return 1 if span[0] == 0 else (span[1] - span[0]) * self._temporal_scale

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
    """AutoencoderKLCogVideoX: two latent frames a chunk, an odd one goes with the first."""

    patch = 1
    prepares_clip = False

    def __init__(self, vae: Vae) -> None:
        self._vae = vae
        self._together = vae.num_latent_frames_batch_size
        self._temporal_scale = int(vae.config.temporal_compression_ratio)
        self.spatial_scale = 2 ** (len(vae.config.block_out_channels) - 1)
        whole = min(vae.tile_sample_min_height, vae.tile_sample_min_width)
        self.tile_pixels: tuple[int, ...] = (whole, whole // 2)

    def to_vae_latents(self, latents: Tensor) -> Tensor:
        config = self._vae.config
        latents = single(latents, config.latent_channels, channel_axis=2)
        return 1 / float(config.scaling_factor) * latents.transpose(1, 2)

    def spans(self, latent_frames: int) -> list[tuple[int, int]]:
        first = min(self._together + latent_frames % self._together, latent_frames)
        starts = range(first, latent_frames, self._together)
        return [(0, first), *((start, start + self._together) for start in starts)]

    def frames_of(self, span: tuple[int, int]) -> int:
        latent_frames = span[1] - span[0]
        has_lone_frame = span[0] == 0 and latent_frames % 2 == 1
        return latent_frames * self._temporal_scale - (self._temporal_scale - 1) * has_lone_frame

    def prepare(self, latents: Tensor) -> Tensor:
        return latents if self._vae.post_quant_conv is None else self._vae.post_quant_conv(latents)

    def step(self, latents: Tensor, cache: Cache | None) -> tuple[Tensor, Cache]:
        frames, cache = self._vae.decoder(latents, conv_cache=cache)
        return frames, cache

    def finish(self, frames: Tensor) -> Tensor:
        return frames
