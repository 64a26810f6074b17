"""The decoder of LTX-Video as a stream: every layer takes chunks of frames and returns chunks of frames.

A convolution that is not causal needs the frame after the one it computes, so it returns one frame less than
it has received until the clip ends. Every frame passes every layer once: the result is that of one call on
the whole clip. Memory does not grow with the clip, because layers with larger frames get fewer at a time.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

Layer = Any
"""A module of diffusers, which ships no types."""

Chunk = tuple[Tensor, bool]
"""Frames [1, C, T, h, w], and whether they are the last ones of the clip."""

TIME = 2
# The most values that enter a layer at once: large enough to keep a GPU busy.
_MAX_VALUES = 1 << 26


Modulation = tuple[Tensor, Tensor]
"""Scale and shift."""

Activate = Callable[[Tensor, Layer, Modulation | None, Layer], Tensor]
"""Frames, a norm, a modulation and an activation, applied in this order."""


def activated(frames: Tensor, norm: Layer, modulation: Modulation | None, activation: Layer) -> Tensor:
    """With the layers of the VAE."""
    active: Tensor = activation(_modulated(_normed(frames, norm), modulation))
    return active


def stream_decoder(
    decoder: Layer,
    latents: Tensor,
    timestep: Tensor | None,
    chunk_frames: int,
    activate: Activate = activated,
) -> Iterator[Tensor]:
    """Pixel frames of an `LTXVideoDecoder3d` without the clamp, `chunk_frames` at a time until the last."""
    chunks: Iterator[Chunk] = iter([(latents, True)])
    for stage in _stages(decoder, timestep, activate):
        chunks = _run(stage, _split(chunks))
    return _in_chunks_of((_to_pixels(frames, decoder) for frames, _ in chunks), chunk_frames)


class _Streamed(Protocol):
    """A layer that keeps the frames it still needs from one chunk to the next."""

    def push(self, frames: Tensor, *, is_last: bool) -> Tensor | None:
        """The frames that can be computed now; None if there are none."""
        ...


def _stages(decoder: Layer, timestep: Tensor | None, activate: Activate) -> Iterator[list[_Streamed]]:
    """The layers, in groups that end where frames become larger."""
    if timestep is not None and decoder.timestep_scale_multiplier is not None:
        timestep = timestep * decoder.timestep_scale_multiplier
    layers: list[_Streamed] = [
        _Convolution(decoder.conv_in),
        *_residual_blocks(decoder.mid_block, timestep, activate),
    ]
    for block in decoder.up_blocks:
        if block.conv_in is not None:
            layers.append(_ResidualBlock(block.conv_in, timestep, activate))
        for upsampler in block.upsamplers or ():
            yield [*layers, _Upsampler(upsampler)]
            layers = []
        layers += _residual_blocks(block, timestep, activate)
    yield [*layers, _Output(decoder, timestep, activate)]


def _run(layers: list[_Streamed], chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    for chunk, is_last in chunks:
        frames: Tensor | None = chunk
        for layer in layers:
            if frames is not None:
                frames = layer.push(frames, is_last=is_last)
        if frames is not None:
            yield frames, is_last


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


class _Convolution:
    """`LTXVideoCausalConv3d`: the first and the last frame are repeated beyond the ends of the clip."""

    def __init__(self, layer: Layer) -> None:
        self._convolve = layer.conv
        self._kernel = layer.kernel_size[0]
        self._after = 0 if layer.is_causal else (self._kernel - 1) // 2
        self._held: Tensor | None = None

    def push(self, frames: Tensor, *, is_last: bool) -> Tensor | None:
        before = self._kernel - 1 - self._after
        parts = [_repeated(frames[:, :, :1], before) if self._held is None else self._held, frames]
        if is_last:
            parts.append(_repeated(frames[:, :, -1:], self._after))
        joined = _joined(parts)
        count = joined.shape[TIME]
        # A copy: a view would keep the whole chunk in memory.
        self._held = joined[:, :, max(count - (self._kernel - 1), 0) :].clone()
        return self._convolve(joined) if count >= self._kernel else None


def _joined(parts: list[Tensor]) -> Tensor:
    """One after the other in time, with channels last if the frames have them there."""
    if not parts[-1].is_contiguous(memory_format=torch.channels_last_3d):
        return torch.cat(parts, dim=TIME)
    return torch.cat([part.permute(0, 2, 3, 4, 1) for part in parts], dim=1).permute(0, 4, 1, 2, 3)


def _repeated(frame: Tensor, count: int) -> Tensor:
    return frame.expand(-1, -1, count, -1, -1)


class _Delay:
    """Frames that entered a branch and wait for its output."""

    def __init__(self) -> None:
        self._frames: Tensor | None = None

    def add(self, frames: Tensor) -> None:
        self._frames = frames if self._frames is None else _joined([self._frames, frames])

    def take(self, count: int) -> Tensor:
        """The oldest `count` frames."""
        if self._frames is None or self._frames.shape[TIME] < count:
            raise RuntimeError("a branch returned more frames than it received")
        taken, rest = self._frames[:, :, :count], self._frames[:, :, count:]
        self._frames = rest.clone() if rest.shape[TIME] else None
        return taken


class _Noise:
    """The noise of a layer: one plane for all frames of the clip."""

    def __init__(self, scale: Tensor | None) -> None:
        self._scale = scale
        self._noise: Tensor | None = None

    def add_to(self, frames: Tensor) -> Tensor:
        if self._scale is None:
            return frames
        if self._noise is None:
            plane = torch.randn(frames.shape[-2:], device=frames.device, dtype=frames.dtype)
            self._noise = (plane[None] * self._scale)[None, :, None]
        return frames + self._noise


def _residual_blocks(block: Layer, timestep: Tensor | None, activate: Activate) -> list[_Streamed]:
    embedded = _embed(block, timestep)
    return [_ResidualBlock(resnet, embedded, activate) for resnet in block.resnets]


class _ResidualBlock:
    """`LTXVideoResnetBlock3d`."""

    def __init__(self, block: Layer, embedded: Tensor | None, activate: Activate) -> None:
        self._block = block
        self._activate = activate
        has_time = block.scale_shift_table is not None
        self._modulations = _modulations(block, embedded) if has_time else (None, None)
        self._convolutions = _Convolution(block.conv1), _Convolution(block.conv2)
        self._noises = _Noise(block.per_channel_scale1), _Noise(block.per_channel_scale2)
        self._delay = _Delay()

    def push(self, frames: Tensor, *, is_last: bool) -> Tensor | None:
        self._delay.add(frames)
        hidden = frames
        for number, norm in enumerate((self._block.norm1, self._block.norm2)):
            active = self._activate(hidden, norm, self._modulations[number], self._block.nonlinearity)
            convolved = self._convolutions[number].push(active, is_last=is_last)
            if convolved is None:
                return None
            hidden = self._noises[number].add_to(convolved)
        return hidden + self._skip(self._delay.take(hidden.shape[TIME]))

    def _skip(self, frames: Tensor) -> Tensor:
        if self._block.norm3 is not None:
            frames = _normed(frames, self._block.norm3)
        if self._block.conv_shortcut is not None:  # a kernel of one frame
            frames = self._block.conv_shortcut(frames)
        return frames


class _Upsampler:
    """`LTXVideoUpsampler3d`: channels become frames and pixels; the first frame of the clip stays single."""

    def __init__(self, layer: Layer) -> None:
        self._layer = layer
        self._convolution = _Convolution(layer.conv)
        self._delay = _Delay()
        self._dropped = layer.stride[0] - 1

    def push(self, frames: Tensor, *, is_last: bool) -> Tensor | None:
        stride = self._layer.stride
        if self._layer.residual:
            self._delay.add(frames)
        hidden = self._convolution.push(frames, is_last=is_last)
        if hidden is None:
            return None
        count, hidden = hidden.shape[TIME], _unfold(hidden, stride)
        if self._layer.residual:
            repeats = stride[0] * stride[1] * stride[2] // self._layer.upscale_factor
            hidden = hidden + _unfold(self._delay.take(count), stride).repeat(1, repeats, 1, 1, 1)
        dropped, self._dropped = self._dropped, 0
        return hidden[:, :, dropped:]


class _Output:
    """The norm, the activation and the convolution after the last block."""

    def __init__(self, decoder: Layer, timestep: Tensor | None, activate: Activate) -> None:
        self._decoder = decoder
        self._activate = activate
        self._convolution = _Convolution(decoder.conv_out)
        self._modulation: Modulation | None = None
        if (embedded := _embed(decoder, timestep)) is not None:
            table = embedded.view(1, 2, -1, 1, 1, 1) + decoder.scale_shift_table[None, ..., None, None, None]
            shift, scale = table.unbind(dim=1)
            self._modulation = scale, shift

    def push(self, frames: Tensor, *, is_last: bool) -> Tensor | None:
        decoder = self._decoder
        active = self._activate(frames, decoder.norm_out, self._modulation, decoder.conv_act)
        return self._convolution.push(active, is_last=is_last)


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


def _modulations(block: Layer, embedded: Tensor | None) -> tuple[Modulation, Modulation]:
    if embedded is None:
        raise RuntimeError("a block with timestep conditioning has no timestep")
    table = embedded.view(1, 4, -1, 1, 1, 1) + block.scale_shift_table[None, ..., None, None, None]
    shift_1, scale_1, shift_2, scale_2 = table.unbind(dim=1)
    return (scale_1, shift_1), (scale_2, shift_2)


def _normed(frames: Tensor, norm: Layer) -> Tensor:
    normed: Tensor = norm(frames.movedim(1, -1)).movedim(-1, 1)
    return normed


def _modulated(frames: Tensor, modulation: Modulation | None) -> Tensor:
    if modulation is None:
        return frames
    scale, shift = modulation
    return frames * (1 + scale) + shift


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
