"""LTX-Video: streamed layer by layer, with the frames of `vae.decode`."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from filmgate.errors import UsageError
from filmgate.pipeline.decode.base import ClipShape, Rung, Vae, tile_ladder
from filmgate.pipeline.decode.latents import as_single_clip
from filmgate.pipeline.decode.ltx_layers import stream_decoder
from filmgate.pipeline.decode.tiles import TileGrid

CHUNK_FRAMES = 8


class LtxDecoder:
    """Decodes with the VAE's own layers, one chunk at a time. From 0.9.1 on the decoder also denoises."""

    DECODE_TIMESTEP = 0.05
    DECODE_NOISE_SCALE = 0.025

    def __init__(self, vae: Vae) -> None:
        self._vae = vae

    def to_vae_latents(self, latents: Tensor) -> Tensor:
        if latents.ndim == 3:
            raise UsageError(
                "these latents are packed (LTX's output_type='latent'); unpack them first with "
                "pipe._unpack_latents(latents, frames, height, width), counted in latent pixels",
                option="latents",
            )
        latents = as_single_clip(latents, self._vae.config.latent_channels)
        mean = self._vae.latents_mean.view(1, -1, 1, 1, 1).to(latents.device, latents.dtype)
        std = self._vae.latents_std.view(1, -1, 1, 1, 1).to(latents.device, latents.dtype)
        latents = latents * std / self._vae.config.scaling_factor + mean
        if latents.is_meta or not self._vae.config.timestep_conditioning:
            return latents
        generator = torch.Generator(latents.device).manual_seed(0)
        noise = torch.randn(latents.shape, generator=generator, device=latents.device, dtype=latents.dtype)
        return (1 - self.DECODE_NOISE_SCALE) * latents + self.DECODE_NOISE_SCALE * noise

    def shape(self, latents: Tensor) -> ClipShape:
        _, _, latent_frames, height, width = latents.shape
        ratio, scale = self._vae.temporal_compression_ratio, self._vae.spatial_compression_ratio
        frames = (latent_frames - 1) * ratio + 1
        return ClipShape(frames, height * scale, width * scale, min(CHUNK_FRAMES, frames))

    def rungs(self, latents: Tensor) -> Sequence[Rung]:
        return tile_ladder(self._vae, self.shape(latents))

    def chunks(self, latents: Tensor, rung: Rung) -> Iterator[Tensor]:
        if rung.tile_pixels is None:
            for frames in self._stream(latents):
                yield frames[0].clamp(-1, 1)
            return
        grid = self._grid(latents, rung.tile_pixels)
        tiles = [self._stream(tile) for tile in grid.cut(latents)]
        for parts in zip(*tiles, strict=True):
            yield grid.blend(list(parts))[0].clamp(-1, 1)

    def _stream(self, latents: Tensor) -> Iterator[Tensor]:
        return stream_decoder(self._vae.decoder, latents, self._timestep(latents), CHUNK_FRAMES)

    def _timestep(self, latents: Tensor) -> Tensor | None:
        if not self._vae.config.timestep_conditioning:
            return None
        return torch.full((1,), self.DECODE_TIMESTEP, device=latents.device, dtype=latents.dtype)

    def _grid(self, latents: Tensor, tile_pixels: int) -> TileGrid:
        scale = self._vae.spatial_compression_ratio
        height, width = latents.shape[-2:]
        return TileGrid(height, width, tile_pixels // scale, (tile_pixels - tile_pixels // 4) // scale, scale)
