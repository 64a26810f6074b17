"""The decoder of LTX-Video as a stream: every layer takes chunks of frames and yields chunks of frames.

A convolution that is not causal needs the frame after the one it computes, so it yields one frame less than
it has received until the clip ends. Every frame passes every layer once: the result is that of one call on
the whole clip. Memory does not grow with the clip, because layers with larger frames get fewer at a time.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

Layer = Any
"""A module of diffusers, which ships no types."""

Chunk = tuple[Tensor, bool]
"""Frames [1, C, T, h, w], and whether they are the last ones of the clip."""

TIME = 2
# The most values that enter a layer at once: large enough to keep a GPU busy.
_MAX_VALUES = 1 << 26


def stream_decoder(
    decoder: Layer, latents: Tensor, timestep: Tensor | None, chunk_frames: int
) -> Iterator[Tensor]:
    """Pixel frames of an `LTXVideoDecoder3d` without the clamp, `chunk_frames` at a time until the last."""
    if timestep is not None and decoder.timestep_scale_multiplier is not None:
        timestep = timestep * decoder.timestep_scale_multiplier
    chunks = _convolve(_split([(latents, True)]), decoder.conv_in)
    chunks = _residual_blocks(chunks, decoder.mid_block, timestep)
    for block in decoder.up_blocks:
        if block.conv_in is not None:
            chunks = _residual_block(chunks, block.conv_in, timestep)
        for upsampler in block.upsamplers or ():
            chunks = _split(_upsample(chunks, upsampler))
        chunks = _residual_blocks(chunks, block, timestep)
    chunks = _convolve(_finish(chunks, decoder, timestep), decoder.conv_out)
    return _in_chunks_of((_to_pixels(frames, decoder) for frames, _ in chunks), chunk_frames)


def _split(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """The same frames in chunks of at most _MAX_VALUES values."""
    for frames, is_last in chunks:
        size = max(1, _MAX_VALUES // frames[:, :, 0].numel())
        pieces = torch.split(frames, size, dim=TIME)
        for number, piece in enumerate(pieces, start=1):
            yield piece, is_last and number == len(pieces)


def _in_chunks_of(streamed: Iterator[Tensor], count: int) -> Iterator[Tensor]:
    """The same frames in chunks of exactly `count`, except the last."""
    rest: Tensor | None = None
    for frames in streamed:
        joined = frames if rest is None else torch.cat([rest, frames], dim=TIME)
        *full, rest = torch.split(joined, count, dim=TIME)
        yield from full
    if rest is not None:
        yield rest


class _Delay:
    """Frames that entered a branch and wait for its output."""

    def __init__(self) -> None:
        self._frames: Tensor | None = None

    def record(self, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
        """The same frames, which `take` returns later."""
        for frames, is_last in chunks:
            self._frames = frames if self._frames is None else torch.cat([self._frames, frames], dim=TIME)
            yield frames, is_last

    def take(self, count: int) -> Tensor:
        """The oldest `count` frames."""
        if self._frames is None or self._frames.shape[TIME] < count:
            raise RuntimeError("a branch yielded more frames than it received")
        taken, rest = self._frames[:, :, :count], self._frames[:, :, count:]
        # A copy: a view would keep the whole chunk in memory.
        self._frames = rest.clone() if rest.shape[TIME] else None
        return taken


def _convolve(chunks: Iterable[Chunk], layer: Layer) -> Iterator[Chunk]:
    """`LTXVideoCausalConv3d`: the first and the last frame are repeated beyond the ends of the clip."""
    kernel = layer.kernel_size[0]
    after = 0 if layer.is_causal else (kernel - 1) // 2
    before = kernel - 1 - after
    held: Tensor | None = None
    for frames, is_last in chunks:
        parts = [_repeated(frames[:, :, :1], before) if held is None else held, frames]
        if is_last:
            parts.append(_repeated(frames[:, :, -1:], after))
        held = torch.cat(parts, dim=TIME)
        if held.shape[TIME] >= kernel:
            yield layer.conv(held), is_last
            held = held[:, :, held.shape[TIME] - (kernel - 1) :].clone()


def _repeated(frame: Tensor, count: int) -> Tensor:
    return frame.expand(-1, -1, count, -1, -1)


def _residual_blocks(chunks: Iterator[Chunk], block: Layer, timestep: Tensor | None) -> Iterator[Chunk]:
    embedded = _embed(block, timestep)
    for resnet in block.resnets:
        chunks = _residual_block(chunks, resnet, embedded)
    return chunks


def _residual_block(chunks: Iterator[Chunk], block: Layer, embedded: Tensor | None) -> Iterator[Chunk]:
    """`LTXVideoResnetBlock3d`."""
    modulations = [None, None] if block.scale_shift_table is None else _modulations(block, embedded)
    delay = _Delay()
    hidden = _activated(delay.record(chunks), block, block.norm1, modulations[0])
    hidden = _noisy(_convolve(hidden, block.conv1), block.per_channel_scale1)
    hidden = _activated(hidden, block, block.norm2, modulations[1])
    for frames, is_last in _noisy(_convolve(hidden, block.conv2), block.per_channel_scale2):
        skipped = delay.take(frames.shape[TIME])
        if block.norm3 is not None:
            skipped = _normed(skipped, block.norm3)
        if block.conv_shortcut is not None:  # a kernel of one frame
            skipped = block.conv_shortcut(skipped)
        yield frames + skipped, is_last


def _activated(
    chunks: Iterator[Chunk], block: Layer, norm: Layer, modulation: "_Modulation | None"
) -> Iterator[Chunk]:
    for frames, is_last in chunks:
        yield block.nonlinearity(_modulated(_normed(frames, norm), modulation)), is_last


def _upsample(chunks: Iterator[Chunk], layer: Layer) -> Iterator[Chunk]:
    """`LTXVideoUpsampler3d`: channels become frames and pixels; the first frame of the clip stays single."""
    stride = layer.stride
    repeats = stride[0] * stride[1] * stride[2] // layer.upscale_factor
    delay = _Delay()
    dropped = stride[0] - 1
    for frames, is_last in _convolve(delay.record(chunks), layer.conv):
        skipped = delay.take(frames.shape[TIME])
        larger = _unfold(frames, stride)
        if layer.residual:
            larger = larger + _unfold(skipped, stride).repeat(1, repeats, 1, 1, 1)
        yield larger[:, :, dropped:], is_last
        dropped = 0


def _finish(chunks: Iterator[Chunk], decoder: Layer, timestep: Tensor | None) -> Iterator[Chunk]:
    """The norm and the activation before the last convolution."""
    modulation = None
    if (embedded := _embed(decoder, timestep)) is not None:
        table = embedded.view(1, 2, -1, 1, 1, 1) + decoder.scale_shift_table[None, ..., None, None, None]
        shift, scale = table.unbind(dim=1)
        modulation = (scale, shift)
    for frames, is_last in chunks:
        yield decoder.conv_act(_modulated(_normed(frames, decoder.norm_out), modulation)), is_last


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


def _noisy(chunks: Iterator[Chunk], scale: Tensor | None) -> Iterator[Chunk]:
    """Add the noise of a layer: one plane for all frames of the clip."""
    noise: Tensor | None = None
    for frames, is_last in chunks:
        if scale is not None and noise is None:
            plane = torch.randn(frames.shape[-2:], device=frames.device, dtype=frames.dtype)
            noise = (plane[None] * scale)[None, :, None]
        yield (frames if noise is None else frames + noise), is_last


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
