"""The fast decoder of HunyuanVideo: its own layers in float16, channels last, with fused norms."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from filmgate.pipeline.decode.base import Rung, Vae
from filmgate.pipeline.decode.fast.activation import (
    CHANNELS_LAST,
    Border,
    NormActivation,
    activate,
    add_to,
    channel_sums,
    converted,
    unsupported_activation,
)
from filmgate.pipeline.decode.fast.conv3d import convolve, replace_convolutions
from filmgate.pipeline.decode.windowed import WindowedDecoder


@dataclass(frozen=True, slots=True)
class BiasedFrames:
    """Frames, and a bias per channel in float32 that the next norm or border adds."""

    frames: Tensor
    bias: Tensor


class HunyuanVideoNetwork:
    """post_quant_conv and decoder of HunyuanVideo."""

    def __init__(self, vae: Vae, dtype: torch.dtype) -> None:
        self._first = converted(vae.post_quant_conv, dtype)
        self._decoder = converted(vae.decoder, dtype)
        for layer in self._decoder.modules():
            if isinstance(layer, nn.Conv3d) and layer.bias is not None:
                layer.bias.data = layer.bias.data.float()
        replace_convolutions(self._decoder)
        self._dtype = dtype

    def __call__(self, latents: Tensor) -> Tensor:
        """Frames of one window, without the clamp."""
        decoder, middle = self._decoder, self._decoder.mid_block
        latents = self._first(latents.to(self._dtype).contiguous(memory_format=CHANNELS_LAST))
        hidden = _convolve(
            decoder.conv_in, BiasedFrames(latents, latents.new_zeros(latents.shape[1]).float())
        )
        hidden = _residual_block(middle.resnets[0], hidden)
        for attention, resnet in zip(middle.attentions, middle.resnets[1:], strict=True):
            hidden = _residual_block(resnet, hidden if attention is None else _attend(attention, hidden))
        for block in decoder.up_blocks:
            for resnet in block.resnets:
                hidden = _residual_block(resnet, hidden)
            for upsampler in block.upsamplers or ():
                larger = BiasedFrames(_enlarge(hidden.frames, upsampler.upsample_factor), hidden.bias)
                hidden = _convolve(upsampler.conv, larger)
        last = _convolve(decoder.conv_out, hidden, decoder.conv_norm_out)
        return add_to(last.frames, last.bias)


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
    return unsupported_activation(vae.decoder)


def _convolve(layer: Any, given: BiasedFrames, norm: nn.GroupNorm | None = None) -> BiasedFrames:
    """A causal convolution, after a group norm and SiLU if there is a norm."""
    weight, (in_time, height, _) = layer.conv.weight, layer.conv.kernel_size
    if norm is None and (in_time, height) == (1, 1):
        bias = torch.mv(weight.flatten(1).float(), given.bias) + layer.conv.bias
        return BiasedFrames(functional.conv3d(given.frames, weight), bias)
    if norm is None:
        steps = NormActivation(given.bias, is_active=False)
    else:
        steps = NormActivation(modulation=_scale_and_shift(given, norm))
    inputs = activate(given.frames, steps, Border(before=in_time - 1, side=height // 2))
    return BiasedFrames(convolve(layer.conv, inputs), layer.conv.bias)


def _residual_block(block: Any, given: BiasedFrames) -> BiasedFrames:
    hidden = _convolve(block.conv1, given, block.norm1)
    hidden = _convolve(block.conv2, hidden, block.norm2)
    skipped = given if block.conv_shortcut is None else _convolve(block.conv_shortcut, given)
    return BiasedFrames(hidden.frames.add_(skipped.frames), hidden.bias + skipped.bias)


def _scale_and_shift(given: BiasedFrames, norm: nn.GroupNorm) -> tuple[Tensor, Tensor]:
    """What a group norm over the whole window multiplies by and adds, per channel, in float32.

    They apply to the frames without the bias, although its values count in the norm.
    """
    bias = given.bias
    sums, squares = channel_sums(given.frames.contiguous(memory_format=CHANNELS_LAST))
    channels = len(bias)
    count = given.frames.numel() // channels
    size = count * channels // norm.num_groups
    mean = (sums + count * bias).view(norm.num_groups, -1).sum(1) / size
    squares = squares + bias * (2 * sums + count * bias)
    variance = squares.view(norm.num_groups, -1).sum(1) / size - mean * mean
    root = torch.rsqrt(variance.clamp(min=0) + norm.eps)
    per_channel = channels // norm.num_groups
    gamma = norm.weight.float() * root.repeat_interleave(per_channel, output_size=channels)
    mean = mean.repeat_interleave(per_channel, output_size=channels)
    return gamma, norm.bias.float() + (bias - mean) * gamma


def _attend(attention: Any, given: BiasedFrames) -> BiasedFrames:
    """Every frame attends to itself and the frames before it: a mask would take the square of all pixels."""
    _, channels, length, height, width = given.frames.shape
    steps = NormActivation(modulation=_scale_and_shift(given, attention.group_norm), is_active=False)
    rows = activate(given.frames, steps).permute(0, 2, 3, 4, 1).reshape(1, -1, channels)
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
    return BiasedFrames(shaped / attention.rescale_output_factor + given.frames, given.bias)


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
