"""Wan's decoder, layer by layer, on the fast path."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import linear

from filmgate.pipeline.decode.base import Vae
from filmgate.pipeline.decode.fast.layers import (
    Attention,
    CausalConvolution,
    Duplicate,
    Head,
    Module,
    Residual,
    Tape,
    Upsample,
    at_home,
)
from filmgate.pipeline.decode.fast.passes import (
    CACHED_FRAMES,
    Activation,
    Layout,
    Pending,
    Source,
    combine,
)

Layer = Callable[[Pending, Tape], Pending]


class Entrance:
    """The pipeline's latents, through post_quant_conv and over three frames through conv_in.

    The deviations and means the VAE's latents are scaled and shifted by are in post_quant_conv's weights.
    """

    def __init__(self, vae: Vae, dtype: torch.dtype) -> None:
        matrix = vae.post_quant_conv.weight.detach().float().flatten(1)
        std, mean = (matrix.new_tensor(one) for one in (vae.config.latents_std, vae.config.latents_mean))
        self._matrix = (matrix * std).to(dtype)
        self._bias = (vae.post_quant_conv.bias.detach().float() + matrix @ mean).to(dtype)
        self._conv = CausalConvolution(vae.decoder.conv_in, 1, dtype)

    def __call__(self, latents: Tensor, tape: Tape) -> Pending:
        pixels = latents[0].permute(1, 2, 3, 0)
        pixels = pixels.to(self._matrix.dtype, memory_format=torch.contiguous_format)
        frames = linear(pixels, self._matrix, self._bias)
        layout = self._conv.layout(is_first=tape.is_first)
        cache = tape.next((CACHED_FRAMES, *frames.shape[1:]), frames, is_begun=layout is Layout.FRAMES)
        pending = Pending(Source.FRAMES, (frames,))
        _, inputs = combine(pending, Activation(None, layout, cache), keep=False)
        return self._conv(inputs, layout)


class UpBlock:
    """WanUpBlock, and WanResidualUpBlock with the shortcut around it."""

    def __init__(self, block: Module, frames: int, dtype: torch.dtype) -> None:
        self._resnets = [Residual(resnet, frames, dtype) for resnet in block.resnets]
        upsampler = block.upsampler if hasattr(block, "upsampler") else (block.upsamplers or [None])[0]
        self._upsample = Upsample(upsampler, dtype) if upsampler is not None else None
        self.frames = frames if self._upsample is None else frames * self._upsample.times
        shortcut = getattr(block, "avg_shortcut", None)
        device = block.resnets[0].conv1.weight.device
        self._shortcut = Duplicate(shortcut, device) if shortcut is not None else None

    def __call__(self, pending: Pending, tape: Tape) -> Pending:
        around: Tensor | None = None
        if self._shortcut is not None:
            entered, _ = combine(pending, None, keep=True)
            around = self._shortcut(entered, is_first=tape.is_first)
            pending = Pending(Source.FRAMES, (entered,))
        for resnet in self._resnets:
            pending = resnet(pending, tape)
        if self._upsample is not None:
            pending = self._upsample(pending, tape)
        if around is not None:
            pending.residual = around
        return pending


class Network:
    """A Wan decoder with its weights laid out again. Holds no state of a clip: that is on its tapes.

    It comes in two halves, so that the lower one may run ahead of the upper (relay.py). Cut below the last
    two levels, both launch about as many kernels and what is handed over is small.
    """

    LEVELS_ABOVE = 2

    def __init__(self, vae: Vae, dtype: torch.dtype) -> None:
        decoder = vae.decoder
        mid = decoder.mid_block
        self._device: torch.device = vae.device
        self._entrance = Entrance(vae, dtype)
        layers: list[Layer] = [Residual(mid.resnets[0], 1, dtype)]
        for attention, resnet in zip(mid.attentions, mid.resnets[1:], strict=True):
            layers += [Attention(attention, dtype), Residual(resnet, 1, dtype)]
        frames = 1
        for block in decoder.up_blocks:
            level = UpBlock(block, frames, dtype)
            layers.append(level)
            frames = level.frames
        self._lower: Sequence[Layer] = layers[: -self.LEVELS_ABOVE]
        self._upper: Sequence[Layer] = layers[-self.LEVELS_ABOVE :]
        self._head = Head(decoder, dtype)

    def lower(self, latents: Tensor, tape: Tape) -> Pending:
        """One latent frame [1, c, 1, h, w] up to the last two levels."""
        with at_home(self._device):
            pending = self._entrance(latents, tape)
            for layer in self._lower:
                pending = layer(pending, tape)
        return pending

    def upper(self, pending: Pending, tape: Tape) -> Tensor:
        """What `lower` left behind, to frames [1, 3, n, height, width]."""
        with at_home(self._device):
            for layer in self._upper:
                pending = layer(pending, tape)
            return self._head(pending, tape)
