"""Fast decoders of LTX-Video and HunyuanVideo: their own layers in float16, channels last, with fused norms.

cuDNN convolves fastest with channels last, and nothing is copied to another layout in between.
"""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from filmgate.pipeline.decode.base import Rung, Vae
from filmgate.pipeline.decode.ltx import CHUNK_FRAMES, LtxDecoder
from filmgate.pipeline.decode.ltx_layers import Modulation, stream_decoder
from filmgate.pipeline.decode.windowed import WindowedDecoder

M = TypeVar("M", bound=nn.Module)
CHANNELS_LAST = torch.channels_last_3d


def converted(module: M, dtype: torch.dtype) -> M:
    """A copy in this dtype with channels last."""
    copy: Any = deepcopy(module).to(dtype)  # torch's types do not know `memory_format` here
    result: M = copy.to(memory_format=CHANNELS_LAST).requires_grad_(requires_grad=False)
    return result


def activate(
    frames: Tensor,
    modulation: tuple[Tensor, Tensor] | None,
    epsilon: float | None = None,
    border: tuple[int, int] = (0, 0),
    *,
    is_active: bool = True,
) -> Tensor:
    """[1, C, T, h, w] with channels last: RMS norm over channels, scale and shift per channel, SiLU, border.

    Without `epsilon` there is no norm. `border` is how often the first frame is repeated before the clip, and
    how many pixels are repeated on every side.
    """
    frames = frames.contiguous(memory_format=CHANNELS_LAST)
    if frames.is_cuda:
        from filmgate.pipeline.decode.fast.activation_kernels import activate_on_gpu

        return activate_on_gpu(frames, modulation, epsilon, border, is_active=is_active)
    return activate_in_torch(frames, modulation, epsilon, border, is_active=is_active)


def activate_in_torch(
    frames: Tensor,
    modulation: tuple[Tensor, Tensor] | None,
    epsilon: float | None,
    border: tuple[int, int],
    *,
    is_active: bool,
) -> Tensor:
    """The reference implementation."""
    values = frames.float()
    if epsilon is not None:
        values = values * torch.rsqrt((values * values).mean(1, keepdim=True) + epsilon)
    if modulation is not None:
        lift, drop = (one.float().view(1, -1, 1, 1, 1) for one in modulation)
        values = values * lift + drop
    if is_active:
        values = functional.silu(values)
    before, side = border
    padded = functional.pad(values, (side, side, side, side, before, 0), mode="replicate")
    return padded.to(frames.dtype).contiguous(memory_format=CHANNELS_LAST)


class FastLtx(LtxDecoder):
    """LTX-Video, streamed as before, through the converted layers."""

    def __init__(self, vae: Vae, decoder: Any) -> None:
        super().__init__(vae)
        self._decoder = decoder

    def _stream(self, latents: Tensor) -> Iterator[Tensor]:
        dtype = self._decoder.conv_in.conv.weight.dtype
        latents = latents.to(dtype).contiguous(memory_format=CHANNELS_LAST)
        return stream_decoder(self._decoder, latents, self._timestep(latents), CHUNK_FRAMES, _activated)


def unsupported_ltx(vae: Vae) -> str | None:
    norms = [m for m in vae.decoder.modules() if type(m).__name__ == "RMSNorm"]
    if any(norm.weight is not None for norm in norms):
        return "the VAE's norms have weights"
    return _unsupported_activation(vae.decoder)


def _activated(frames: Tensor, norm: Any, modulation: Modulation | None, _activation: Any) -> Tensor:
    if modulation is None:
        return activate(frames, None, norm.eps)
    scale, shift = modulation
    return activate(frames, ((1 + scale).flatten(), shift.flatten()), norm.eps)


class HunyuanVideoNetwork:
    """post_quant_conv and decoder of HunyuanVideo."""

    def __init__(self, vae: Vae, dtype: torch.dtype) -> None:
        self._first = converted(vae.post_quant_conv, dtype)
        self._decoder = converted(vae.decoder, dtype)
        self._dtype = dtype

    def __call__(self, latents: Tensor) -> Tensor:
        """Frames of one window, without the clamp."""
        decoder, middle = self._decoder, self._decoder.mid_block
        latents = latents.to(self._dtype).contiguous(memory_format=CHANNELS_LAST)
        hidden = _convolve(decoder.conv_in, self._first(latents))
        hidden = _residual_block(middle.resnets[0], hidden)
        for attention, resnet in zip(middle.attentions, middle.resnets[1:], strict=True):
            hidden = _residual_block(resnet, hidden if attention is None else _attend(attention, hidden))
        for block in decoder.up_blocks:
            for resnet in block.resnets:
                hidden = _residual_block(resnet, hidden)
            for upsampler in block.upsamplers or ():
                hidden = _convolve(upsampler.conv, _enlarge(hidden, upsampler.upsample_factor))
        return _convolve(decoder.conv_out, hidden, decoder.conv_norm_out)


class FastHunyuanVideo(WindowedDecoder):
    """HunyuanVideo, window by window as before. Tiles, used when memory is short, keep the VAE's layers."""

    def __init__(self, vae: Vae, network: HunyuanVideoNetwork) -> None:
        super().__init__(vae)
        self._network = network

    def _decode(self, window: Tensor, rung: Rung) -> Tensor:
        return self._network(window) if rung.tile_pixels is None else super()._decode(window, rung)


def unsupported_hunyuanvideo(vae: Vae) -> str | None:
    convolutions = [m for m in vae.decoder.modules() if type(m).__name__ == "HunyuanVideoCausalConv3d"]
    if any(layer.pad_mode != "replicate" for layer in convolutions):
        return "the VAE's convolutions do not repeat the border"
    return _unsupported_activation(vae.decoder)


def _unsupported_activation(decoder: nn.Module) -> str | None:
    used = {type(m.nonlinearity).__name__ for m in decoder.modules() if hasattr(m, "nonlinearity")}
    return None if used <= {"SiLU"} else f"the VAE's activation is {', '.join(sorted(used))}, not SiLU"


def _convolve(layer: Any, frames: Tensor, norm: nn.GroupNorm | None = None) -> Tensor:
    """A causal convolution, after a group norm and SiLU if there is a norm."""
    kernel = layer.conv.kernel_size
    modulation = None if norm is None else _scale_and_shift(frames, norm)
    border = (kernel[0] - 1, kernel[1] // 2)
    if norm is None and border == (0, 0):
        return torch.as_tensor(layer.conv(frames))
    return torch.as_tensor(layer.conv(activate(frames, modulation, None, border, is_active=norm is not None)))


def _residual_block(block: Any, frames: Tensor) -> Tensor:
    hidden = _convolve(block.conv1, frames, block.norm1)
    hidden = _convolve(block.conv2, hidden, block.norm2)
    return hidden + (frames if block.conv_shortcut is None else _convolve(block.conv_shortcut, frames))


def _scale_and_shift(frames: Tensor, norm: nn.GroupNorm) -> tuple[Tensor, Tensor]:
    """What a group norm over the whole window multiplies by and adds, per channel, in float32."""
    rows = frames.permute(0, 2, 3, 4, 1).flatten(0, 3)
    count, channels = rows.shape
    size = count * channels // norm.num_groups
    sums = rows.sum(0, dtype=torch.float32).view(norm.num_groups, -1).sum(1)
    squares = torch.linalg.vector_norm(rows, dim=0, dtype=torch.float32).square()
    mean = sums / size
    variance = squares.view(norm.num_groups, -1).sum(1) / size - mean * mean
    root = torch.rsqrt(variance.clamp(min=0) + norm.eps)
    per_channel = channels // norm.num_groups
    lift = norm.weight.float() * root.repeat_interleave(per_channel, output_size=channels)
    return lift, norm.bias.float() - mean.repeat_interleave(per_channel, output_size=channels) * lift


def _attend(attention: Any, frames: Tensor) -> Tensor:
    """Every frame attends to itself and the frames before it: a mask would take the square of all pixels."""
    _, channels, length, height, width = frames.shape
    lift, drop = _scale_and_shift(frames, attention.group_norm)
    rows = activate(frames, (lift, drop), is_active=False).permute(0, 2, 3, 4, 1).reshape(1, -1, channels)
    query, key, value = (
        layer(rows).unflatten(2, (attention.heads, -1)).transpose(1, 2)
        for layer in (attention.to_q, attention.to_k, attention.to_v)
    )
    pixels = height * width
    seen = [
        functional.scaled_dot_product_attention(
            query[:, :, end - pixels : end], key[:, :, :end], value[:, :, :end]
        )
        for end in range(pixels, pixels * length + 1, pixels)
    ]
    joined = attention.to_out[0](torch.cat(seen, dim=2).transpose(1, 2).flatten(2))
    shaped = joined.view(1, length, height, width, channels).permute(0, 4, 1, 2, 3)
    return torch.as_tensor(shaped / attention.rescale_output_factor + frames)


def _enlarge(frames: Tensor, factor: tuple[float, ...]) -> Tensor:
    """Repeat frames, rows and columns; the first frame of the window stays single in time."""
    _, _, length, height, width = frames.shape
    in_time, down, across = (int(each) for each in factor)
    repeats = torch.full((length,), in_time, device=frames.device)
    repeats[0] = 1
    rows = frames.permute(0, 2, 3, 4, 1)
    if in_time > 1:
        rows = rows.repeat_interleave(repeats, dim=1, output_size=(length - 1) * in_time + 1)
    wide = rows[:, :, :, None, :, None].expand(-1, -1, -1, down, -1, across, -1)
    return wide.reshape(1, rows.shape[1], height * down, width * across, -1).permute(0, 4, 1, 2, 3)
