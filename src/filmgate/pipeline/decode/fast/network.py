"""Wan's decoder, layer by layer, on the fast path."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import linear

from filmgate.pipeline.decode.base import Vae
from filmgate.pipeline.decode.fast.layers import (
    Attention,
    CacheCursor,
    CausalConvolution,
    DuplicateShortcut,
    Head,
    Module,
    Residual,
    Upsample,
    on_device,
)
from filmgate.pipeline.decode.fast.passes import (
    CACHED_FRAMES,
    ConvOutput,
    InputLayout,
    InputSpec,
    OutputLayout,
    combine,
)

Layer = Callable[[ConvOutput, CacheCursor], ConvOutput]


class Stem:
    """post_quant_conv and conv_in, applied to the latents of the pipeline.

    The weights of post_quant_conv include the mean and standard deviation that denormalise the latents.
    """

    def __init__(self, vae: Vae, dtype: torch.dtype) -> None:
        matrix = vae.post_quant_conv.weight.detach().float().flatten(1)
        std, mean = (matrix.new_tensor(one) for one in (vae.config.latents_std, vae.config.latents_mean))
        self._matrix = (matrix * std).to(dtype)
        self._bias = (vae.post_quant_conv.bias.detach().float() + matrix @ mean).to(dtype)
        self._conv = CausalConvolution(vae.decoder.conv_in, 1, dtype)

    def __call__(self, latents: Tensor, caches: CacheCursor) -> ConvOutput:
        pixels = latents[0].permute(1, 2, 3, 0)
        pixels = pixels.to(self._matrix.dtype, memory_format=torch.contiguous_format)
        frames = linear(pixels, self._matrix, self._bias)
        layout = self._conv.layout(is_first=caches.is_first)
        starts = layout is InputLayout.FRAMES
        cache = caches.next((CACHED_FRAMES, *frames.shape[1:]), frames, may_be_uninitialised=starts)
        output = ConvOutput(OutputLayout.FRAMES, (frames,))
        _, inputs = combine(output, InputSpec(None, layout, cache), keep=False)
        return self._conv(inputs, layout)


class UpBlock:
    """WanUpBlock, and WanResidualUpBlock with the shortcut around it."""

    def __init__(self, block: Module, frames: int, dtype: torch.dtype) -> None:
        self._resnets = [Residual(resnet, frames, dtype) for resnet in block.resnets]
        upsampler = block.upsampler if hasattr(block, "upsampler") else (block.upsamplers or [None])[0]
        self._upsample = Upsample(upsampler, dtype) if upsampler is not None else None
        self.frames = frames if self._upsample is None else frames * self._upsample.frame_factor
        shortcut = getattr(block, "avg_shortcut", None)
        device = block.resnets[0].conv1.weight.device
        self._shortcut = DuplicateShortcut(shortcut, device) if shortcut is not None else None

    def __call__(self, output: ConvOutput, caches: CacheCursor) -> ConvOutput:
        around: Tensor | None = None
        if self._shortcut is not None:
            entered, _ = combine(output, None, keep=True)
            around = self._shortcut(entered, is_first=caches.is_first)
            output = ConvOutput(OutputLayout.FRAMES, (entered,))
        for resnet in self._resnets:
            output = resnet(output, caches)
        if self._upsample is not None:
            output = self._upsample(output, caches)
        if around is not None:
            output.residual = around
        return output


class Network:
    """A Wan decoder with converted weights. Clips keep their state in the caches that they pass in.

    The network has two halves, so the lower one can run ahead of the upper (two_streams.py). The cut is below
    the last two levels: both halves launch about the same number of kernels, and the tensors that pass from
    one to the other are small.
    """

    UPPER_LEVELS = 2

    def __init__(self, vae: Vae, dtype: torch.dtype) -> None:
        decoder = vae.decoder
        mid = decoder.mid_block
        self._device: torch.device = vae.device
        self._stem = Stem(vae, dtype)
        layers: list[Layer] = [Residual(mid.resnets[0], 1, dtype)]
        for attention, resnet in zip(mid.attentions, mid.resnets[1:], strict=True):
            layers += [Attention(attention, dtype), Residual(resnet, 1, dtype)]
        frames = 1
        for block in decoder.up_blocks:
            level = UpBlock(block, frames, dtype)
            layers.append(level)
            frames = level.frames
        self._lower: Sequence[Layer] = layers[: -self.UPPER_LEVELS]
        self._upper: Sequence[Layer] = layers[-self.UPPER_LEVELS :]
        self._head = Head(decoder, dtype)

    def lower(self, latents: Tensor, caches: CacheCursor) -> ConvOutput:
        """The layers below the last two levels, for one latent frame [1, c, 1, h, w]."""
        with on_device(self._device):
            output = self._stem(latents, caches)
            for layer in self._lower:
                output = layer(output, caches)
        return output

    def upper(self, output: ConvOutput, caches: CacheCursor) -> Tensor:
        """The last two levels and the head: the output of `lower` to frames [1, c, n, height, width]."""
        with on_device(self._device):
            for layer in self._upper:
                output = layer(output, caches)
            return self._head(output, caches)
