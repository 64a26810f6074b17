"""Wan's layers with weights laid out for the fast path: half precision, channels last, taps transformed."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv2d, linear, rms_norm

from filmgate.pipeline.decode.fast.passes import (
    CACHED_FRAMES,
    TAPS,
    TINY,
    Activation,
    Layout,
    Pending,
    Source,
    add_taps,
    combine,
    soften,
)
from filmgate.pipeline.decode.fast.winograd import TRANSFORMS

Module = Any
"""A layer of diffusers' Wan decoder."""

QUERIES = 4096  # attended to at a time: bounds the scores' memory at any size


Caches = list[Tensor | None]


class Tape:
    """One stream's causal caches, read and moved on in the order of the layers; none before the first."""

    def __init__(self, caches: Caches) -> None:
        self.is_first = not caches
        self._caches = caches
        self._at = 0

    def next(self, shape: tuple[int, ...], like: Tensor, *, is_begun: bool = False) -> Tensor:
        """The next layer's cache: zeros until something was seen, or anything where the layer begins it."""
        if self._at == len(self._caches):
            self._caches.append(None)
        if (cache := self._caches[self._at]) is None:
            cache = like.new_empty(shape) if is_begun else like.new_zeros(shape)
            self._caches[self._at] = cache
        self._at += 1
        return cache

    def skip(self) -> None:
        """Leave the next layer's cache untouched."""
        if self._at == len(self._caches):
            self._caches.append(None)
        self._at += 1


def convolve(frames: Tensor, weight: Tensor, padding: int) -> Tensor:
    """A spatial convolution of frames [n, height, width, channels]; the same layout comes back."""
    return conv2d(frames.permute(0, 3, 1, 2), weight, padding=padding).permute(0, 2, 3, 1).contiguous()


class CausalConvolution:
    """A 3 x 3 x 3 causal convolution: by Winograd over several frames, stacked for a single one.

    `frames` is what a chunk brings it, from the second chunk on; the first is a single frame everywhere.
    """

    def __init__(self, conv: Module, frames: int, dtype: torch.dtype) -> None:
        taps = conv.weight.detach().float()
        self._layout = Layout.STACKED if frames == 1 else Layout.SLOTS
        if frames == 1:
            weights = [torch.cat(taps.unbind(2), dim=1)]
        else:
            weights = list(torch.einsum("st,oithw->soihw", taps.new_tensor(TRANSFORMS[frames].taps), taps))
        self._weights = [weight.to(dtype).contiguous(memory_format=torch.channels_last) for weight in weights]
        # The last tap alone: the slot at infinity, or the last third of the stacked channels.
        newest = self._weights[-1][:, -taps.shape[1] :]
        self._newest = newest.contiguous(memory_format=torch.channels_last)
        self.bias = conv.bias.detach().float()

    def layout(self, *, is_first: bool) -> Layout:
        """What it reads. The first chunk has nothing before it: one tap sees it, the others see zeros."""
        return Layout.FRAMES if is_first else self._layout

    def __call__(self, inputs: list[Tensor], layout: Layout) -> Pending:
        """What it makes of its inputs; each is given up once it has been read, to be written over."""
        if layout is Layout.SLOTS:
            maps = tuple(convolve(inputs.pop(0), weight, padding=1) for weight in self._weights)
            return Pending(Source.SLOTS, maps, self.bias)
        weight = self._newest if layout is Layout.FRAMES else self._weights[0]
        return Pending(Source.FRAMES, (convolve(inputs.pop(), weight, padding=1),), self.bias)


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

    def __call__(self, pending: Pending, tape: Tape) -> Pending:
        residual, middle = self._half(0, pending, tape, keep=True)
        if self._shortcut is not None:
            residual = linear(residual, self._shortcut)
        _, pending = self._half(1, middle, tape, keep=False)
        pending.bias, pending.residual = self._bias, residual
        return pending

    def _half(self, n: int, pending: Pending, tape: Tape, *, keep: bool) -> tuple[Tensor, Pending]:
        _, height, width, channels = pending.shape
        layout = self._convs[n].layout(is_first=tape.is_first)
        shape = (CACHED_FRAMES, height, width, channels)
        cache = tape.next(shape, pending.maps[0], is_begun=layout is Layout.FRAMES)
        kept, inputs = combine(pending, Activation(self._gammas[n], layout, cache), keep=keep)
        return kept, self._convs[n](inputs, layout)


class Attention:
    """WanAttentionBlock: one head over the pixels of each frame."""

    def __init__(self, block: Module, dtype: torch.dtype) -> None:
        self._gamma = block.norm.gamma.detach().to(dtype).flatten()
        # A query is divided by the root of its length: by its weights, once for all.
        scales = torch.ones(3 * len(self._gamma), device=self._gamma.device)
        scales[: len(self._gamma)] = len(self._gamma) ** -0.5
        self._to_qkv, self._proj = as_matrix(block.to_qkv, dtype, scales), as_matrix(block.proj, dtype)

    def __call__(self, pending: Pending, tape: Tape) -> Pending:  # noqa: ARG002 - a layer like the others
        kept, _ = combine(pending, None, keep=True)
        normal = rms_norm(kept, self._gamma.shape, self._gamma, TINY)
        query, key, value = self._to_qkv(normal).flatten(1, 2).chunk(3, dim=-1)
        mixed = attend(query, key, value)
        return Pending(Source.FRAMES, (self._proj(mixed.view(kept.shape)),), residual=kept)


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """softmax(q k') v for one wide head, some queries at a time.

    No fused kernel takes 384 channels in one head at full speed, and two matrix products with a softmax in
    float32 between them are more than twice as fast as the one that takes them at all.
    """
    parts = []
    for rows in torch.split(query, QUERIES, dim=1):
        if query.is_cuda:
            scores = torch.bmm(rows, key.transpose(1, 2), out_dtype=torch.float32)
        else:
            scores = torch.bmm(rows.float(), key.float().transpose(1, 2))
        parts.append(torch.bmm(soften(scores, value.dtype), value))
    return torch.cat(parts, dim=1)


class Upsample:
    """WanResample: twice the frames where it says so, then twice the height and width and a convolution.

    Of the nine pixels the convolution reads in an upsampled picture only four differ, so each of the four
    sub-pixel phases is a 2 x 2 convolution of the small picture.
    """

    def __init__(self, resample: Module, dtype: torch.dtype) -> None:
        is_doubling = resample.mode == "upsample3d"
        self._time = Doubling(resample.time_conv, dtype) if is_doubling else None
        self.times = 2 if is_doubling else 1
        conv = resample.resample[1]
        self._weight = (
            as_phases(conv.weight.detach().float()).to(dtype).contiguous(memory_format=torch.channels_last)
        )
        self._bias = conv.bias.detach().float()

    def __call__(self, pending: Pending, tape: Tape) -> Pending:
        if self._time is None:
            frames, _ = combine(pending, None, keep=True)
        elif tape.is_first:
            tape.skip()  # the first frame stays single and is not remembered
            frames, _ = combine(pending, None, keep=True)
        else:
            _, height, width, channels = pending.shape
            cache = tape.next((CACHED_FRAMES, height, width, channels), pending.maps[0])
            _, (stacked,) = combine(pending, Activation(None, Layout.STACKED, cache), keep=False)
            frames = self._time(stacked)
        return Pending(Source.PHASES, (convolve(frames, self._weight, padding=1),), self._bias)


class Doubling:
    """The convolution over time that makes two frames of one: a matrix for each of the two."""

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


def as_phases(weight: Tensor) -> Tensor:
    """[out, in, 3, 3] on an upsampled picture as [4 * out, in, 2, 2] on the picture itself."""
    first, middle, last = weight.unbind(2)
    rows = (torch.stack([first, middle + last], 2), torch.stack([first + middle, last], 2))
    phases = []
    for row in rows:
        first, middle, last = row.unbind(3)
        phases.append(torch.stack([first, middle + last], 3))
        phases.append(torch.stack([first + middle, last], 3))
    return torch.cat(phases)


class Duplicate:
    """DupUp3D: the shortcut around an upsampling block of Wan 2.2, pixels and channels repeated."""

    def __init__(self, shortcut: Module, device: torch.device) -> None:
        self._times = shortcut.factor_t
        self._channels = shortcut.out_channels
        repeated = torch.arange(shortcut.out_channels * shortcut.factor, device=device)
        self._from = repeated // shortcut.repeats

    def __call__(self, frames: Tensor, *, is_first: bool) -> Tensor:
        count, height, width, _ = frames.shape
        spread = frames.index_select(-1, self._from)
        whole = spread.view(count, height, width, self._channels, self._times, 2, 2)
        whole = whole.permute(0, 4, 1, 5, 2, 6, 3)
        whole = whole.reshape(count * self._times, height * 2, width * 2, self._channels)
        return whole[self._times - 1 :] if is_first else whole


class Head:
    """The last norm and convolution, its three taps beside each other: what is remembered is thin."""

    def __init__(self, decoder: Module, dtype: torch.dtype) -> None:
        self._gamma = decoder.norm_out.gamma.detach().float().flatten()
        self._weight = taps_beside(decoder.conv_out, dtype)
        self._bias = decoder.conv_out.bias.detach().float()

    def __call__(self, pending: Pending, tape: Tape) -> Tensor:
        _, (active,) = combine(pending, Activation(self._gamma, Layout.FRAMES), keep=False)
        maps = convolve(active, self._weight, padding=1)
        _, height, width, _ = maps.shape
        carry = tape.next((len(self._bias), CACHED_FRAMES, height, width), self._bias)
        return add_taps(maps, self._bias, carry).unsqueeze(0)


def at_home(device: torch.device) -> AbstractContextManager[object]:
    """Triton launches on the thread's GPU, which need not be the VAE's."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def taps_beside(conv: Module, dtype: torch.dtype) -> Tensor:
    """A causal convolution's taps as one over space, channels in a multiple of 8, as cuDNN likes."""
    stacked = torch.cat(conv.weight.detach().float().unbind(2))
    spare = -len(stacked) % 8
    padded = torch.cat([stacked, stacked.new_zeros(spare, *stacked.shape[1:])])
    return padded.to(dtype).contiguous(memory_format=torch.channels_last)


def as_matrix(conv: Module, dtype: torch.dtype, scales: Tensor | None = None) -> Callable[[Tensor], Tensor]:
    """A convolution of one pixel, as a matrix over its channels; `scales` multiply what comes out."""
    matrix, bias = conv.weight.detach().flatten(1), conv.bias.detach()
    if scales is not None:
        matrix, bias = matrix.float() * scales[:, None], bias.float() * scales
    matrix, bias = matrix.to(dtype), bias.to(dtype)
    return lambda frames: linear(frames, matrix, bias)
