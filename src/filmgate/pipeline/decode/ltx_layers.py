"""The decoder of LTX-Video as a stream: every layer takes chunks of frames and returns chunks of frames.

A convolution that is not causal needs the frame after the one it computes, so it returns one frame less than
it has received until the clip ends. Every frame passes every layer once: the result equals one call on the
whole clip. Memory does not grow with the clip, because layers with larger frames get fewer at a time.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from accelerate.utils import align_module_device
from torch import Tensor

Layer = Any
"""A module of diffusers, which ships no types."""

Chunk = tuple[Tensor, bool]
"""Frames [1, C, T, h, w], and whether they are the last ones of the clip."""

TIME = 2
# The most values that enter a layer together: large enough to keep a GPU busy.
_MAX_VALUES = 1 << 26
_GROUP = 4  # frames that the fast decoder convolves together


Modulation = tuple[Tensor, Tensor]
"""Scale and shift."""


@dataclass(frozen=True, slots=True)
class Activation:
    """What precedes a convolution: a bias, a norm, a modulation and a function, applied in this order."""

    norm: Layer
    function: Layer
    modulation: Modulation | None
    bias: Tensor | None = None


Prepare = Callable[[Tensor, Tensor | None, tuple[int, int]], Tensor]
"""The input of a convolution: frames held or copies of the first one, the frames, copies of the last one."""


class Operations:
    """The operations of the layers of one stream, as in the VAE."""

    def __init__(self) -> None:
        self._noises = itertools.count()

    def noise(self, scale: Tensor | None) -> "_Noise":
        """The noise of the next layer, the same for every clip: the same latents must give the same clip."""
        return _Noise(scale, next(self._noises))

    def preparation(self, activation: Activation | None) -> Prepare:
        assert activation is None or activation.bias is None

        def prepare(frames: Tensor, held: Tensor | None, repeats: tuple[int, int]) -> Tensor:
            if activation is not None:
                normed = _modulated(_normed(frames, activation.norm), activation.modulation)
                frames = activation.function(normed)
            first, last = repeats
            before = _repeated(frames[:, :, :1], first) if held is None else held
            return torch.cat([before, frames, _repeated(frames[:, :, -1:], last)], dim=TIME)

        return prepare

    def convolve(self, layer: Layer, frames: Tensor) -> Tensor:
        convolved: Tensor = layer(frames)
        return convolved

    def bias_left_out(self, layer: Layer) -> Tensor | None:  # noqa: ARG002
        """What `convolve` did not add and `preparation` or `add` must."""
        return None

    def add(self, frames: Tensor, bias: Tensor | None, skipped: Sequence[Tensor] = ()) -> Tensor:
        """The output of a convolution with its bias and the frames that went around it."""
        assert bias is None
        return frames + torch.cat(list(skipped), dim=TIME) if skipped else frames

    def unfold(self, frames: Tensor, stride: tuple[int, int, int]) -> Tensor:
        """[1, C * s0 * s1 * s2, T, h, w] as [1, C, T * s0, h * s1, w * s2]."""
        _, _, count, height, width = frames.shape
        parts = frames.reshape(1, -1, *stride, count, height, width)
        return parts.permute(0, 1, 5, 2, 6, 3, 7, 4).flatten(6, 7).flatten(4, 5).flatten(2, 3)

    def unfold_convolved(self, frames: Tensor, stride: tuple[int, int, int]) -> Tensor:
        """The same for the output of an upsampler's convolution."""
        return self.unfold(frames, stride)


def stream_decoder(
    decoder: Layer,
    latents: Tensor,
    timestep: Tensor | None,
    chunk_frames: int,
    operations: Operations | None = None,
) -> Iterator[Tensor]:
    """Pixel frames of an `LTXVideoDecoder3d` without the clamp, `chunk_frames` at a time until the last."""
    chunks: Iterator[Chunk] = iter([(latents, True)])
    with align_module_device(decoder):  # accelerate loads offloaded weights only for a module's own forward
        for stage in _stages(decoder, timestep, operations or Operations()):
            chunks = _run(stage, _split(chunks))
    return _in_chunks_of((_to_pixels(frames, decoder) for frames, _ in chunks), chunk_frames)


class _Streamed(Protocol):
    """A layer that keeps the frames it still needs from one chunk to the next."""

    def push(self, frames: Tensor, *, is_last: bool) -> Tensor | None:
        """The frames that can be computed now; None if there are none."""
        ...


def _stages(decoder: Layer, timestep: Tensor | None, operations: Operations) -> Iterator[list[_Streamed]]:
    """The layers, in groups that end where frames become larger."""
    if timestep is not None and decoder.timestep_scale_multiplier is not None:
        timestep = timestep * decoder.timestep_scale_multiplier
    layers: list[_Streamed] = [
        _Convolution(decoder.conv_in, operations),
        *_residual_blocks(decoder.mid_block, timestep, operations),
    ]
    for block in decoder.up_blocks:
        if block.conv_in is not None:
            layers.append(_ResidualBlock(block.conv_in, timestep, operations))
        for upsampler in block.upsamplers or ():
            yield [*layers, _Upsampler(upsampler, operations)]
            layers = []
        layers += _residual_blocks(block, timestep, operations)
    yield [*layers, _output(decoder, timestep, operations)]


def _run(layers: list[_Streamed], chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    for chunk, is_last in chunks:
        frames: Tensor | None = chunk
        for layer in layers:
            if frames is not None:
                frames = layer.push(frames, is_last=is_last)
        if frames is not None:
            yield frames, is_last


def _split(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """The same frames in chunks of at most _MAX_VALUES values, and of whole groups if one fits."""
    for frames, is_last in chunks:
        size = max(1, _MAX_VALUES // frames[:, :, 0].numel())
        size -= size % _GROUP if size > _GROUP else 0
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

    def __init__(self, layer: Layer, operations: Operations, activation: Activation | None = None) -> None:
        self._layer = layer.conv
        self._operations = operations
        self._prepare = operations.preparation(activation)
        self._kernel = layer.kernel_size[0]
        self._after = 0 if layer.is_causal else (self._kernel - 1) // 2
        self._held: Tensor | None = None
        self.bias = operations.bias_left_out(self._layer)

    def push(self, frames: Tensor, *, is_last: bool) -> Tensor | None:
        convolved = self.push_without_bias(frames, is_last=is_last)
        return None if convolved is None else self._operations.add(convolved, self.bias)

    def push_without_bias(self, frames: Tensor, *, is_last: bool) -> Tensor | None:
        repeats = self._kernel - 1 - self._after, self._after if is_last else 0
        joined = self._prepare(frames, self._held, repeats)
        count = joined.shape[TIME]
        if not is_last:
            # A copy: a view would keep the whole chunk in memory.
            self._held = joined[:, :, max(count - (self._kernel - 1), 0) :].clone()
        return self._operations.convolve(self._layer, joined) if count >= self._kernel else None


def _repeated(frame: Tensor, count: int) -> Tensor:
    return frame.expand(-1, -1, count, -1, -1)


class _Delay:
    """Frames that entered a branch and wait for its output."""

    def __init__(self) -> None:
        self._parts: list[Tensor] = []

    def add(self, frames: Tensor) -> None:
        self._parts.append(frames)

    def take(self, count: int) -> list[Tensor]:
        """The oldest `count` frames, as they came."""
        taken: list[Tensor] = []
        while count:
            if not self._parts:
                raise RuntimeError("a branch returned more frames than it received")
            part = self._parts.pop(0)
            taken.append(part[:, :, :count])
            if rest := part.shape[TIME] - taken[-1].shape[TIME]:
                self._parts.insert(
                    0, part[:, :, -rest:].clone()
                )  # a view would keep the whole part in memory
            count -= taken[-1].shape[TIME]
        return taken


class _Noise:
    """The noise of a layer: one plane for all frames of the clip."""

    def __init__(self, scale: Tensor | None, seed: int) -> None:
        self._scale = scale
        self._seed = seed
        self._noise: Tensor | None = None

    def add_to(self, frames: Tensor) -> Tensor:
        if self._scale is None:
            return frames
        if self._noise is None:
            generator = torch.Generator(frames.device).manual_seed(self._seed)
            plane = torch.randn(frames.shape[-2:], generator=generator, device=frames.device)
            self._noise = (plane.to(frames.dtype)[None] * self._scale)[None, :, None]
        return frames + self._noise


def _residual_blocks(block: Layer, timestep: Tensor | None, operations: Operations) -> list[_Streamed]:
    embedded = _embed(block, timestep)
    return [_ResidualBlock(resnet, embedded, operations) for resnet in block.resnets]


class _ResidualBlock:
    """`LTXVideoResnetBlock3d`."""

    def __init__(self, block: Layer, embedded: Tensor | None, operations: Operations) -> None:
        self._block = block
        self._operations = operations
        has_time = block.scale_shift_table is not None
        with align_module_device(block):
            before, between = _modulations(block, embedded) if has_time else (None, None)
            scales = block.per_channel_scale1, block.per_channel_scale2
            self._noises = [operations.noise(scale) for scale in scales]
        activation = Activation(block.norm1, block.nonlinearity, before)
        self._first = _Convolution(block.conv1, operations, activation)
        activation = Activation(block.norm2, block.nonlinearity, between, self._first.bias)
        self._second = _Convolution(block.conv2, operations, activation)
        self._delay = _Delay()

    def push(self, frames: Tensor, *, is_last: bool) -> Tensor | None:
        self._delay.add(frames)
        hidden = frames
        for convolution, noise in zip((self._first, self._second), self._noises, strict=True):
            convolved = convolution.push_without_bias(hidden, is_last=is_last)
            if convolved is None:
                return None
            hidden = noise.add_to(convolved)
        skipped = [self._skip(part) for part in self._delay.take(hidden.shape[TIME])]
        return self._operations.add(hidden, self._second.bias, skipped)

    def _skip(self, frames: Tensor) -> Tensor:
        if self._block.norm3 is not None:
            frames = _normed(frames, self._block.norm3)
        if self._block.conv_shortcut is not None:  # a kernel of one frame
            frames = self._block.conv_shortcut(frames)
        return frames


class _Upsampler:
    """`LTXVideoUpsampler3d`: channels become frames and pixels; the first frame of the clip stays single."""

    def __init__(self, layer: Layer, operations: Operations) -> None:
        self._layer = layer
        self._operations = operations
        self._convolution = _Convolution(layer.conv, operations)
        self._delay = _Delay()
        self._dropped = layer.stride[0] - 1

    def push(self, frames: Tensor, *, is_last: bool) -> Tensor | None:
        stride = self._layer.stride
        if self._layer.residual:
            self._delay.add(frames)
        hidden = self._convolution.push(frames, is_last=is_last)
        if hidden is None:
            return None
        count, hidden = hidden.shape[TIME], self._operations.unfold_convolved(hidden, stride)
        if self._layer.residual:
            repeats = stride[0] * stride[1] * stride[2] // self._layer.upscale_factor
            skipped = [
                self._operations.unfold(part, stride).repeat(1, repeats, 1, 1, 1)
                for part in self._delay.take(count)
            ]
            hidden = self._operations.add(hidden, None, skipped)
        dropped, self._dropped = self._dropped, 0
        return hidden[:, :, dropped:]


def _output(decoder: Layer, timestep: Tensor | None, operations: Operations) -> _Convolution:
    """The norm, the activation and the convolution after the last block."""
    modulation: Modulation | None = None
    if (embedded := _embed(decoder, timestep)) is not None:
        table = embedded.view(1, 2, -1, 1, 1, 1) + decoder.scale_shift_table[None, ..., None, None, None]
        shift, scale = table.unbind(dim=1)
        modulation = scale, shift
    activation = Activation(decoder.norm_out, decoder.conv_act, modulation)
    return _Convolution(decoder.conv_out, operations, activation)


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


def _to_pixels(frames: Tensor, decoder: Layer) -> Tensor:
    """Channels as patches of pixels."""
    _, _, count, height, width = frames.shape
    patch, patch_time = decoder.patch_size, decoder.patch_size_t
    parts = frames.reshape(1, -1, patch_time, patch, patch, count, height, width)
    return parts.permute(0, 1, 5, 2, 6, 4, 7, 3).flatten(6, 7).flatten(4, 5).flatten(2, 3)
