"""The decoder of LTX-Video as a stream: every layer takes chunks of frames and yields chunks of frames.

A convolution that is not causal needs the frame after the one it computes, so it yields one frame less than
it has received until its input ends. Every frame passes every layer once: the result is that of one call on
the whole clip, and memory does not grow with the clip.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

Layer = Any
"""A module of diffusers, which ships no types."""

TIME = 2  # the dimension of frames in [1, C, T, h, w]


def stream_decoder(decoder: Layer, latents: Iterable[Tensor], timestep: Tensor | None) -> Iterator[Tensor]:
    """Pixel frames of an `LTXVideoDecoder3d`, in chunks, without the clamp."""
    if timestep is not None and decoder.timestep_scale_multiplier is not None:
        timestep = timestep * decoder.timestep_scale_multiplier
    frames = _convolve(latents, decoder.conv_in)
    frames = _residual_blocks(frames, decoder.mid_block, timestep)
    for block in decoder.up_blocks:
        if block.conv_in is not None:
            frames = _residual_block(frames, block.conv_in, timestep)
        for upsampler in block.upsamplers or ():
            frames = _upsample(frames, upsampler)
        frames = _residual_blocks(frames, block, timestep)
    frames = _finish(frames, decoder, timestep)
    return (_to_pixels(chunk, decoder) for chunk in _convolve(frames, decoder.conv_out))


class _Delay:
    """Frames that entered a branch and wait for its output."""

    def __init__(self) -> None:
        self._frames: Tensor | None = None

    def record(self, frames: Iterable[Tensor]) -> Iterator[Tensor]:
        """The same frames, which `take` returns later."""
        for chunk in frames:
            self._frames = chunk if self._frames is None else torch.cat([self._frames, chunk], dim=TIME)
            yield chunk

    def take(self, count: int) -> Tensor:
        """The oldest `count` frames."""
        if self._frames is None or self._frames.shape[TIME] < count:
            raise RuntimeError("a branch yielded more frames than it received")
        taken, self._frames = self._frames.tensor_split([count], dim=TIME)
        return taken


def _convolve(frames: Iterable[Tensor], layer: Layer) -> Iterator[Tensor]:
    """`LTXVideoCausalConv3d`: the first and the last frame are repeated beyond the ends of the clip."""
    kernel = layer.kernel_size[0]
    after = 0 if layer.is_causal else (kernel - 1) // 2
    before = kernel - 1 - after
    held: Tensor | None = None
    for chunk in frames:
        first = chunk[:, :, :1].expand(-1, -1, before, -1, -1) if held is None else held
        held = torch.cat([first, chunk], dim=TIME)
        if held.shape[TIME] >= kernel:
            yield layer.conv(held)
            # A copy: a view would keep the whole chunk in memory.
            held = held[:, :, held.shape[TIME] - (kernel - 1) :].clone()
    if held is not None and after > 0:
        yield layer.conv(torch.cat([held, held[:, :, -1:].expand(-1, -1, after, -1, -1)], dim=TIME))


def _residual_blocks(frames: Iterator[Tensor], block: Layer, timestep: Tensor | None) -> Iterator[Tensor]:
    embedded = _embed(block, timestep)
    for resnet in block.resnets:
        frames = _residual_block(frames, resnet, embedded)
    return frames


def _residual_block(frames: Iterator[Tensor], block: Layer, embedded: Tensor | None) -> Iterator[Tensor]:
    """`LTXVideoResnetBlock3d`."""
    modulations = [None, None] if block.scale_shift_table is None else _modulations(block, embedded)
    delay = _Delay()
    hidden = _activated(delay.record(frames), block, block.norm1, modulations[0])
    hidden = _noisy(_convolve(hidden, block.conv1), block.per_channel_scale1)
    hidden = _activated(hidden, block, block.norm2, modulations[1])
    for chunk in _noisy(_convolve(hidden, block.conv2), block.per_channel_scale2):
        skipped = delay.take(chunk.shape[TIME])
        if block.norm3 is not None:
            skipped = _normed(skipped, block.norm3)
        if block.conv_shortcut is not None:  # a kernel of one frame
            skipped = block.conv_shortcut(skipped)
        yield chunk + skipped


def _activated(
    frames: Iterator[Tensor], block: Layer, norm: Layer, modulation: "_Modulation | None"
) -> Iterator[Tensor]:
    for chunk in frames:
        yield block.nonlinearity(_modulated(_normed(chunk, norm), modulation))


def _upsample(frames: Iterator[Tensor], layer: Layer) -> Iterator[Tensor]:
    """`LTXVideoUpsampler3d`: channels become frames and pixels; the first frame of the clip stays single."""
    stride = layer.stride
    repeats = stride[0] * stride[1] * stride[2] // layer.upscale_factor
    delay = _Delay()
    dropped = stride[0] - 1
    for chunk in _convolve(delay.record(frames), layer.conv):
        skipped = delay.take(chunk.shape[TIME])
        larger = _unfold(chunk, stride)
        if layer.residual:
            larger = larger + _unfold(skipped, stride).repeat(1, repeats, 1, 1, 1)
        yield larger[:, :, dropped:]
        dropped = 0


def _finish(frames: Iterator[Tensor], decoder: Layer, timestep: Tensor | None) -> Iterator[Tensor]:
    """The norm and the activation before the last convolution."""
    modulation = None
    if (embedded := _embed(decoder, timestep)) is not None:
        table = embedded.view(1, 2, -1, 1, 1, 1) + decoder.scale_shift_table[None, ..., None, None, None]
        shift, scale = table.unbind(dim=1)
        modulation = (scale, shift)
    for chunk in frames:
        yield decoder.conv_act(_modulated(_normed(chunk, decoder.norm_out), modulation))


def _embed(block: Layer, timestep: Tensor | None) -> Tensor | None:
    """The timestep embedding of a block, [1, C, 1, 1, 1]. None without timestep conditioning."""
    if block.time_embedder is None or timestep is None:
        return None
    embedded: Tensor = block.time_embedder(
        timestep=timestep.flatten(),
        resolution=None,
        aspect_ratio=None,
        batch_size=1,
        hidden_dtype=timestep.dtype,
    )
    return embedded.view(1, -1, 1, 1, 1)


_Modulation = tuple[Tensor, Tensor]  # scale and shift


def _modulations(block: Layer, embedded: Tensor | None) -> list[_Modulation | None]:
    if embedded is None:
        raise RuntimeError("a block with timestep conditioning has no timestep")
    table = embedded.view(1, 4, -1, 1, 1, 1) + block.scale_shift_table[None, ..., None, None, None]
    shift_1, scale_1, shift_2, scale_2 = table.unbind(dim=1)
    return [(scale_1, shift_1), (scale_2, shift_2)]


def _normed(frames: Tensor, norm: Layer) -> Tensor:
    normed: Tensor = norm(frames.movedim(1, -1)).movedim(-1, 1)
    return normed


def _modulated(frames: Tensor, modulation: _Modulation | None) -> Tensor:
    if modulation is None:
        return frames
    scale, shift = modulation
    return frames * (1 + scale) + shift


def _noisy(frames: Iterator[Tensor], scale: Tensor | None) -> Iterator[Tensor]:
    """Add the noise of a layer: one plane for all frames of the clip."""
    noise: Tensor | None = None
    for chunk in frames:
        if scale is not None and noise is None:
            plane = torch.randn(chunk.shape[-2:], device=chunk.device, dtype=chunk.dtype)
            noise = (plane[None] * scale)[None, :, None]
        yield chunk if noise is None else chunk + noise


def _unfold(frames: Tensor, stride: tuple[int, int, int]) -> Tensor:
    """[1, C * s0 * s1 * s2, T, h, w] as [1, C, T * s0, h * s1, w * s2]."""
    _, _, count, height, width = frames.shape
    parts = frames.reshape(1, -1, *stride, count, height, width)
    return parts.permute(0, 1, 5, 2, 6, 3, 7, 4).flatten(6, 7).flatten(4, 5).flatten(2, 3)


def _to_pixels(frames: Tensor, decoder: Layer) -> Tensor:
    """Channels as patches of pixels."""
    _, _, count, height, width = frames.shape
    patch, patch_time = decoder.patch_size, decoder.patch_size_t
    parts = frames.reshape(1, -1, patch_time, patch, patch, count, height, width)
    return parts.permute(0, 1, 5, 2, 6, 4, 7, 3).flatten(6, 7).flatten(4, 5).flatten(2, 3)
