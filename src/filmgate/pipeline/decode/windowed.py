"""HunyuanVideo: overlapping windows in time, as its pipeline decodes by default (framewise decoding)."""

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass

from torch import Tensor

from filmgate.pipeline.decode.base import ClipShape, Rung, Vae, as_single_clip, tile_ladder
from filmgate.pipeline.decode.tiles import fade, stride_of


@dataclass(frozen=True, slots=True)
class Windows:
    """The window sizes of the VAE, in latent frames and in pixel frames."""

    latent_length: int
    latent_stride: int
    pixel_stride: int
    pixel_overlap: int

    @classmethod
    def of(cls, vae: Vae) -> "Windows":
        ratio = vae.temporal_compression_ratio
        length, stride = vae.tile_sample_min_num_frames, vae.tile_sample_stride_num_frames
        return cls(length // ratio, stride // ratio, stride, length - stride)


class WindowedDecoder:
    """Decodes window by window. Keeps only the last window, to cross-fade it into the next."""

    def __init__(self, vae: Vae) -> None:
        self._vae = vae
        self._windows = Windows.of(vae)

    def to_vae_latents(self, latents: Tensor) -> Tensor:
        config = self._vae.config
        return as_single_clip(latents, config.latent_channels) / float(config.scaling_factor)

    def shape(self, latents: Tensor) -> ClipShape:
        _, _, latent_frames, height, width = latents.shape
        frames = (latent_frames - 1) * self._vae.temporal_compression_ratio + 1
        is_one_window = latent_frames <= self._windows.latent_length
        longest = frames if is_one_window else self._windows.pixel_stride + 1
        scale = self._vae.spatial_compression_ratio
        return ClipShape(frames, height * scale, width * scale, longest)

    def rungs(self, latents: Tensor) -> Sequence[Rung]:
        side = self._vae.tile_sample_min_height
        return tile_ladder(self.shape(latents), (side, side // 2), starts_tiled=self._vae.use_tiling)

    def chunks(self, latents: Tensor, rung: Rung) -> Iterator[Tensor]:
        total = self.shape(latents).frames
        windows, before, done, start = self._windows, None, 0, 0
        if latents.shape[2] <= windows.latent_length:
            yield self._decode(latents, rung)[0].clamp_(-1, 1)
            return
        while done < total:
            window = latents[:, :, start : start + windows.latent_length + 1]
            frames = self._decode(window, rung)
            if before is not None:
                frames = frames[:, :, 1:]  # the first frame of a later window repeats
                fade(before, frames, windows.pixel_overlap, dim=2)
            keep = min(windows.pixel_stride + (start == 0), total - done)
            yield frames[0, :, :keep].clamp(-1, 1)
            before, done, start = frames, done + keep, start + windows.latent_stride

    def _decode(self, window: Tensor, rung: Rung) -> Tensor:
        frames: Tensor
        if rung.tile_pixels is None:
            frames = self._vae.decoder(self._vae.post_quant_conv(window))
        else:
            frames = tiled(self._vae, rung.tile_pixels).tiled_decode(window, return_dict=False)[0]
        return frames


def tiled(vae: Vae, tile_pixels: int) -> Vae:
    """A copy of the VAE that shares its weights and has other tile sizes. The caller's VAE is not changed."""
    view = copy(vae)
    view.use_tiling = True
    view.tile_sample_min_height = view.tile_sample_min_width = tile_pixels
    view.tile_sample_stride_height = view.tile_sample_stride_width = stride_of(tile_pixels)
    view.tile_latent_min_height = view.tile_latent_min_width = tile_pixels // vae.spatial_compression_ratio
    return view
