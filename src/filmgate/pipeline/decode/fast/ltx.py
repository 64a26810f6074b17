"""The fast decoder of LTX-Video: its own layers in float16, channels last, with fused norms."""

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import Conv3d

from filmgate.pipeline.decode.base import Vae
from filmgate.pipeline.decode.fast.activation import (
    CHANNELS_LAST,
    Border,
    NormActivation,
    activate,
    add_to,
    converted,
    empty_frames,
    unsupported_activation,
)
from filmgate.pipeline.decode.fast.conv3d import convolve, replace_convolutions
from filmgate.pipeline.decode.ltx import CHUNK_FRAMES, LtxDecoder
from filmgate.pipeline.decode.ltx_layers import TIME, Activation, Operations, Prepare, stream_decoder


class FastLtx(LtxDecoder):
    """LTX-Video, streamed as before, through the converted layers."""

    def __init__(self, vae: Vae, decoder: Any) -> None:
        super().__init__(vae)
        self._decoder = decoder

    def _stream(self, latents: Tensor) -> Iterator[Tensor]:
        dtype = self._decoder.conv_in.conv.weight.dtype
        latents = latents.to(dtype).contiguous(memory_format=CHANNELS_LAST)
        return stream_decoder(self._decoder, latents, self._timestep(latents), CHUNK_FRAMES, FastOperations())


def ltx_network(vae: Vae, dtype: torch.dtype) -> Any:
    """The converted layers."""
    decoder = converted(vae.decoder, dtype)
    for block in decoder.up_blocks:
        for upsampler in block.upsamplers or ():
            _move_channels_last(upsampler.conv.conv, prod(upsampler.stride))
    replace_convolutions(decoder)
    return decoder


def _move_channels_last(conv: Conv3d, positions: int) -> None:
    """Order the outputs by position, then by channel: unfolding them copies whole rows of channels."""
    order = torch.arange(conv.out_channels, device=conv.weight.device).view(-1, positions).t().flatten()
    conv.weight.data = conv.weight.data[order].contiguous(memory_format=CHANNELS_LAST)
    if conv.bias is not None:
        conv.bias.data = conv.bias.data[order]


def unsupported_ltx(vae: Vae) -> str | None:
    norms = [m for m in vae.decoder.modules() if type(m).__name__ == "RMSNorm"]
    if any(norm.weight is not None for norm in norms):
        return "the VAE's norms have weights"
    if any(m.in_channels % 8 for m in vae.decoder.modules() if isinstance(m, Conv3d)):
        return "the VAE's channels are not multiples of 8"  # frames within a chunk must start at 16 bytes
    return unsupported_activation(vae.decoder)


class FastOperations(Operations):
    """With the kernels. A convolution leaves out its bias, and its input is written where it is read."""

    def preparation(self, activation: Activation | None) -> Prepare:
        steps = _norm_activation(activation)

        def prepare(frames: Tensor, held: Tensor | None, repeats: tuple[int, int]) -> Tensor:
            first, last = repeats
            if held is None:
                return activate(frames, steps, Border(before=first, after=last))
            start = held.shape[TIME]
            _, channels, count, height, width = frames.shape
            joined = empty_frames((channels, start + count + last, height, width), frames)
            joined[:, :, :start] = held
            activate(frames, steps, Border(after=last), out=joined[:, :, start:])
            return joined

        return prepare

    def convolve(self, layer: Any, frames: Tensor) -> Tensor:
        return convolve(layer, frames)

    def bias_left_out(self, layer: Any) -> Tensor | None:
        bias: Tensor | None = layer.bias
        return bias

    def add(self, frames: Tensor, bias: Tensor | None, skipped: Sequence[Tensor] = ()) -> Tensor:
        if not skipped:
            return add_to(frames, bias)
        start = 0
        for part in skipped:
            end = start + part.shape[TIME]
            add_to(frames[:, :, start:end], bias, part)
            start = end
        return frames

    def unfold_convolved(self, frames: Tensor, stride: tuple[int, int, int]) -> Tensor:
        """See `_move_channels_last`."""
        in_time, down, across = stride
        _, _, count, height, width = frames.shape
        parts = frames.permute(0, 2, 3, 4, 1).reshape(1, count, height, width, in_time, down, across, -1)
        moved = parts.permute(0, 1, 4, 2, 5, 3, 6, 7)
        return moved.reshape(1, count * in_time, height * down, width * across, -1).permute(0, 4, 1, 2, 3)


def _norm_activation(activation: Activation | None) -> NormActivation:
    if activation is None:
        return NormActivation(is_active=False)
    modulation = activation.modulation
    if modulation is not None:
        scale, shift = modulation
        modulation = (1 + scale.float()).flatten(), shift.float().flatten()
    return NormActivation(activation.bias, activation.norm.eps, modulation)
