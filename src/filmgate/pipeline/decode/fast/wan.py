"""Wan's decoder, layer by layer, on the fast path: half precision, channels last, taps transformed."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import linear, rms_norm

from filmgate.pipeline.decode.base import Vae
from filmgate.pipeline.decode.fast.layers import (
    CacheCursor,
    Module,
    as_linear,
    as_phases,
    convolve,
    taps_as_channels,
)
from filmgate.pipeline.decode.fast.passes import (
    CACHED_FRAMES,
    NORM_EPSILON,
    TAPS,
    ConvOutput,
    InputLayout,
    InputSpec,
    OutputLayout,
    add_taps,
    combine,
    softmax,
)
from filmgate.pipeline.decode.fast.winograd import TRANSFORMS

MAX_QUERIES = 4096  # per attention product: bounds the memory of the scores at any picture size

Layer = Callable[[ConvOutput, CacheCursor], ConvOutput]


class CausalConvolution:
    """A 3 x 3 x 3 causal convolution: by Winograd over several frames, stacked over a single one.

    `frames` is the number of frames per chunk from the second chunk on. The first chunk has one frame.
    """

    def __init__(self, conv: Module, frames: int, dtype: torch.dtype) -> None:
        taps = conv.weight.detach().float()
        self._layout = InputLayout.STACKED if frames == 1 else InputLayout.POINTS
        if frames == 1:
            weights = [torch.cat(taps.unbind(2), dim=1)]
        else:
            transform = taps.new_tensor(TRANSFORMS[frames].filter_transform)
            weights = list(torch.einsum("pt,oithw->poihw", transform, taps))
        self._weights = [weight.to(dtype).contiguous(memory_format=torch.channels_last) for weight in weights]
        # The last tap alone: the point at infinity, or the last third of the stacked channels.
        last_tap = self._weights[-1][:, -taps.shape[1] :]
        self._last_tap = last_tap.contiguous(memory_format=torch.channels_last)
        self.bias = conv.bias.detach().float()

    def layout(self, *, is_first: bool) -> InputLayout:
        """The layout of its input. In the first chunk only the last tap reads a frame, the others zeros."""
        return InputLayout.FRAMES if is_first else self._layout

    def __call__(self, inputs: list[Tensor], layout: InputLayout) -> ConvOutput:
        """Convolve the inputs and remove each from the list once it has been read, to free its memory."""
        if layout is InputLayout.POINTS:
            maps = tuple(convolve(inputs.pop(0), weight, padding=1) for weight in self._weights)
            return ConvOutput(OutputLayout.POINTS, maps, self.bias)
        weight = self._last_tap if layout is InputLayout.FRAMES else self._weights[0]
        return ConvOutput(OutputLayout.FRAMES, (convolve(inputs.pop(), weight, padding=1),), self.bias)


class Residual:
    """WanResidualBlock."""

    def __init__(self, block: Module, frames: int, dtype: torch.dtype) -> None:
        self._gammas = [norm.gamma.detach().float().flatten() for norm in (block.norm1, block.norm2)]
        self._convs = [CausalConvolution(conv, frames, dtype) for conv in (block.conv1, block.conv2)]
        self._shortcut: Tensor | None = None
        self._bias = self._convs[1].bias
        if block.in_dim != block.out_dim:
            self._shortcut = block.conv_shortcut.weight.detach().flatten(1).to(dtype)
            self._bias = self._bias + block.conv_shortcut.bias.detach().float()

    def __call__(self, previous: ConvOutput, caches: CacheCursor) -> ConvOutput:
        residual, middle = self._norm_and_convolve(0, previous, caches, keep=True)
        if self._shortcut is not None:
            residual = linear(residual, self._shortcut)
        _, output = self._norm_and_convolve(1, middle, caches, keep=False)
        output.bias, output.residual = self._bias, residual
        return output

    def _norm_and_convolve(
        self, n: int, previous: ConvOutput, caches: CacheCursor, *, keep: bool
    ) -> tuple[Tensor, ConvOutput]:
        _, height, width, channels = previous.shape
        layout = self._convs[n].layout(is_first=caches.is_first)
        shape = (CACHED_FRAMES, height, width, channels)
        starts = layout is InputLayout.FRAMES
        cache = caches.next(shape, previous.maps[0], may_be_uninitialised=starts)
        kept, inputs = combine(previous, InputSpec(self._gammas[n], layout, cache), keep=keep)
        return kept, self._convs[n](inputs, layout)


class Attention:
    """WanAttentionBlock: one head over the pixels of each frame."""

    def __init__(self, block: Module, dtype: torch.dtype) -> None:
        self._gamma = block.norm.gamma.detach().to(dtype).flatten()
        # Attention divides each query by the root of its length. The weights of the queries include this.
        scales = torch.ones(3 * len(self._gamma), device=self._gamma.device)
        scales[: len(self._gamma)] = len(self._gamma) ** -0.5
        self._to_qkv, self._proj = as_linear(block.to_qkv, dtype, scales), as_linear(block.proj, dtype)

    def __call__(self, previous: ConvOutput, caches: CacheCursor) -> ConvOutput:  # noqa: ARG002 - every layer's signature
        kept, _ = combine(previous, None, keep=True)
        normal = rms_norm(kept, self._gamma.shape, self._gamma, NORM_EPSILON)
        query, key, value = self._to_qkv(normal).flatten(1, 2).chunk(3, dim=-1)
        mixed = attend(query, key, value)
        return ConvOutput(OutputLayout.FRAMES, (self._proj(mixed.view(kept.shape)),), residual=kept)


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """softmax(q k') v for one wide head, at most MAX_QUERIES queries at a time.

    No fused kernel runs at full speed with 384 channels in one head. Two matrix products with a float32
    softmax between them are more than twice as fast as the only fused kernel that supports this width.
    """
    parts = []
    for rows in torch.split(query, MAX_QUERIES, dim=1):
        if query.is_cuda:
            scores = torch.bmm(rows, key.transpose(1, 2), out_dtype=torch.float32)
        else:
            scores = torch.bmm(rows.float(), key.float().transpose(1, 2))
        parts.append(torch.bmm(softmax(scores, value.dtype), value))
    return torch.cat(parts, dim=1)


class Upsample:
    """WanResample: doubles the frames in `upsample3d` mode, then doubles height and width and convolves.

    Of the nine pixels that the convolution reads in the upsampled picture only four differ, so each of the
    four sub-pixel phases is a 2 x 2 convolution of the small picture.
    """

    def __init__(self, resample: Module, dtype: torch.dtype) -> None:
        doubles_frames = resample.mode == "upsample3d"
        self._double_frames = DoubleFrames(resample.time_conv, dtype) if doubles_frames else None
        self.frame_factor = 2 if doubles_frames else 1
        conv = resample.resample[1]
        self._weight = (
            as_phases(conv.weight.detach().float()).to(dtype).contiguous(memory_format=torch.channels_last)
        )
        self._bias = conv.bias.detach().float()

    def __call__(self, previous: ConvOutput, caches: CacheCursor) -> ConvOutput:
        if self._double_frames is None:
            frames, _ = combine(previous, None, keep=True)
        elif caches.is_first:
            caches.skip()  # the first frame is not doubled and not cached
            frames, _ = combine(previous, None, keep=True)
        else:
            _, height, width, channels = previous.shape
            cache = caches.next((CACHED_FRAMES, height, width, channels), previous.maps[0])
            _, (stacked,) = combine(previous, InputSpec(None, InputLayout.STACKED, cache), keep=False)
            frames = self._double_frames(stacked)
        return ConvOutput(OutputLayout.PHASES, (convolve(frames, self._weight, padding=1),), self._bias)


class DoubleFrames:
    """The convolution over time that makes two frames of one, as one matrix for each of the two."""

    def __init__(self, conv: Module, dtype: torch.dtype) -> None:
        weight = torch.cat(conv.weight.detach().unbind(2), dim=1).flatten(1)
        self._matrices = [half.t().to(dtype) for half in weight.chunk(2)]
        self._biases = conv.bias.detach().to(dtype).chunk(2)

    def __call__(self, stacked: Tensor) -> Tensor:
        """Frames with the two before them [n, height, width, 3 * c] to [2 * n, height, width, c]."""
        count, height, width, channels = stacked.shape
        doubled = stacked.new_empty(2 * count, height, width, channels // TAPS)
        for n, target in enumerate(doubled):
            torch.addmm(
                self._biases[n % 2],
                stacked[n // 2].view(-1, channels),
                self._matrices[n % 2],
                out=target.view(-1, channels // TAPS),
            )
        return doubled


class DuplicateShortcut:
    """DupUp3D: the shortcut around an upsampling block of Wan 2.2; repeats pixels and channels."""

    def __init__(self, shortcut: Module, device: torch.device) -> None:
        self._frame_factor = shortcut.factor_t
        self._channels = shortcut.out_channels
        repeated = torch.arange(shortcut.out_channels * shortcut.factor, device=device)
        self._source_channels = repeated // shortcut.repeats

    def __call__(self, frames: Tensor, *, is_first: bool) -> Tensor:
        count, height, width, _ = frames.shape
        spread = frames.index_select(-1, self._source_channels)
        whole = spread.view(count, height, width, self._channels, self._frame_factor, 2, 2)
        whole = whole.permute(0, 4, 1, 5, 2, 6, 3)
        whole = whole.reshape(count * self._frame_factor, height * 2, width * 2, self._channels)
        return whole[self._frame_factor - 1 :] if is_first else whole


class Head:
    """The last norm and convolution. Its three taps are computed together and summed by `add_taps`.

    The cache holds sums of three channels instead of two full inputs.
    """

    def __init__(self, decoder: Module, dtype: torch.dtype) -> None:
        self._gamma = decoder.norm_out.gamma.detach().float().flatten()
        self._weight = taps_as_channels(decoder.conv_out, dtype)
        self._bias = decoder.conv_out.bias.detach().float()

    def __call__(self, previous: ConvOutput, caches: CacheCursor) -> Tensor:
        _, (active,) = combine(previous, InputSpec(self._gamma, InputLayout.FRAMES), keep=False)
        maps = convolve(active, self._weight, padding=1)
        _, height, width, _ = maps.shape
        overlap = caches.next((len(self._bias), CACHED_FRAMES, height, width), self._bias)
        return add_taps(maps, self._bias, overlap).unsqueeze(0)


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


class WanNetwork:
    """A Wan decoder with converted weights. Clips keep their state in the caches that they pass in.

    The network has two halves, so the lower one can run ahead of the upper (two_streams.py). The cut is below
    the last two levels: both halves launch about the same number of kernels, and the tensors that pass from
    one to the other are small.
    """

    UPPER_LEVELS = 2

    def __init__(self, vae: Vae, dtype: torch.dtype) -> None:
        decoder = vae.decoder
        mid = decoder.mid_block
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
        output = self._stem(latents, caches)
        for layer in self._lower:
            output = layer(output, caches)
        return output

    def upper(self, output: ConvOutput, caches: CacheCursor) -> Tensor:
        """The last two levels and the head: the output of `lower` to frames [1, c, n, height, width]."""
        for layer in self._upper:
            output = layer(output, caches)
        return self._head(output, caches)
