"""LTX-Video: streamed layer by layer, with the frames of `vae.decode`."""

from collections.abc import Iterator, Sequence

from torch import Tensor

from filmgate.errors import UsageError
from filmgate.pipeline.decode.base import ClipShape, Rung, Vae, as_single_clip, tile_ladder
from filmgate.pipeline.decode.ltx_layers import stream_decoder
from filmgate.pipeline.decode.tiles import TileGrid

CHUNK_FRAMES = 8


class LtxDecoder:
    """Decodes with the VAE's own layers, one chunk at a time.

    From 0.9.1 on, the decoder can also denoise: its time step says how much noise the latents have. As by
    default in diffusers' pipelines, they have none.
    """

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
        normalised: Tensor = latents * std / self._vae.config.scaling_factor + mean
        return normalised

    def shape(self, latents: Tensor) -> ClipShape:
        _, _, latent_frames, height, width = latents.shape
        ratio, scale = self._vae.temporal_compression_ratio, self._vae.spatial_compression_ratio
        frames = (latent_frames - 1) * ratio + 1
        return ClipShape(frames, height * scale, width * scale, min(CHUNK_FRAMES, frames))

    def rungs(self, latents: Tensor) -> Sequence[Rung]:
        side = self._vae.tile_sample_min_height
        return tile_ladder(self.shape(latents), (side, side // 2), starts_tiled=self._vae.use_tiling)

    def chunks(self, latents: Tensor, rung: Rung) -> Iterator[Tensor]:
        if rung.tile_pixels is None:
            for frames in self._stream(latents):
                yield frames[0].clamp(-1, 1)
            return
        scale = self._vae.spatial_compression_ratio
        grid = TileGrid.over(latents, rung.tile_pixels // scale, scale)
        tiles = [self._stream(tile) for tile in grid.cut(latents)]
        for parts in zip(*tiles, strict=True):
            yield grid.blend(list(parts))[0].clamp(-1, 1)

    def _stream(self, latents: Tensor) -> Iterator[Tensor]:
        return stream_decoder(self._vae.decoder, latents, self._timestep(latents), CHUNK_FRAMES)

    def _timestep(self, latents: Tensor) -> Tensor | None:
        if not self._vae.config.timestep_conditioning:
            return None
        return latents.new_zeros(1)
