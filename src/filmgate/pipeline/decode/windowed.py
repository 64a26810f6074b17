"""VAEs with overlapping windows in time (LTX-Video, HunyuanVideo): equal to diffusers' framewise decoding."""

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from filmgate.errors import UsageError
from filmgate.pipeline.decode.base import WHOLE_FRAME, ClipShape, Rung, Vae
from filmgate.pipeline.decode.latents import as_single_clip
from filmgate.pipeline.decode.tiles import fade


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
        shape = self.shape(latents)
        sizes = (self._vae.tile_sample_min_height, self._vae.tile_sample_min_height // 2)
        tiled = [Rung(f"{size} px tiles", size) for size in sizes if size < max(shape.height, shape.width)]
        return tiled if self._vae.use_tiling and tiled else [WHOLE_FRAME, *tiled]

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
                frames = self._trimmed(frames)
                fade(before, frames, windows.pixel_overlap, dim=2)
            keep = min(windows.pixel_stride + (start == 0), total - done)
            yield frames[0, :, :keep].clamp(-1, 1)
            before, done, start = frames, done + keep, start + windows.latent_stride

    def _trimmed(self, frames: Tensor) -> Tensor:
        """A later window without its repeated frame: in HunyuanVideo the first frame."""
        return frames[:, :, 1:]

    def _decode(self, window: Tensor, rung: Rung) -> Tensor:
        frames: Tensor
        if rung.tile_pixels is None:
            frames = self._vae.decoder(self._vae.post_quant_conv(window))
        else:
            frames = tiled(self._vae, rung.tile_pixels).tiled_decode(window, return_dict=False)[0]
        return frames


class LtxDecoder(WindowedDecoder):
    """LTX-Video: not causal, so windows approximate a whole-clip decode. From 0.9.1 on it also denoises."""

    DECODE_TIMESTEP = 0.05
    DECODE_NOISE_SCALE = 0.025

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

    def _trimmed(self, frames: Tensor) -> Tensor:
        """A later window without its last frame, which LTX drops."""
        return frames[:, :, :-1]

    def _decode(self, window: Tensor, rung: Rung) -> Tensor:
        frames: Tensor
        timestep = self._timestep(window)
        if rung.tile_pixels is None:
            frames = self._vae.decoder(window, timestep)
        else:
            frames = tiled(self._vae, rung.tile_pixels).tiled_decode(window, timestep, return_dict=False)[0]
        return frames

    def _timestep(self, window: Tensor) -> Tensor | None:
        if not self._vae.config.timestep_conditioning:
            return None
        return torch.full((1,), self.DECODE_TIMESTEP, device=window.device, dtype=window.dtype)


def tiled(vae: Vae, tile_pixels: int) -> Vae:
    """A copy of the VAE that shares its weights and has other tile sizes. The caller's VAE is not changed."""
    view = copy(vae)
    view.use_tiling = True
    view.tile_sample_min_height = view.tile_sample_min_width = tile_pixels
    view.tile_sample_stride_height = view.tile_sample_stride_width = tile_pixels - tile_pixels // 4
    view.tile_latent_min_height = view.tile_latent_min_width = tile_pixels // vae.spatial_compression_ratio
    return view
