"""Everything between two convolutions, as one pass: `combine`. Here in torch; kernels.py has it in Triton.

Frames are [frames, height, width, channels]: a convolution reads them as channels-last without moving a byte.
"""

from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from filmgate.pipeline.decode.fast.winograd import TRANSFORMS

MOST_FRAMES = 4  # a chunk's, after both temporal upsamplings
TAPS = 3  # of a convolution over time
CACHED_FRAMES = TAPS - 1  # what a causal convolution remembers
TINY = 1e-12  # torch.nn.functional.normalize's


class Source(IntEnum):
    """How a convolution's output lies."""

    FRAMES = 0  # frames
    SLOTS = 1  # one map a slot of the transform: `join` adds them up to frames
    PHASES = 2  # an upsampling convolution: four sub-pixel phases beside each other, one row and column more


class Layout(IntEnum):
    """How the next convolution wants its input."""

    FRAMES = 0  # frames; a cache begins with them, for nothing came before
    STACKED = 1  # frames, each with the two before it in front of its channels
    SLOTS = 2  # one map a slot of the transform


@dataclass(slots=True)
class Pending:
    """What a convolution left behind, not yet added up. `combine` spends it and may write over its tensors:
    at 720p they are gigabytes."""

    source: Source
    maps: tuple[Tensor, ...]
    bias: Tensor | None = None
    residual: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The frames it stands for."""
        frames, height, width, channels = self.maps[0].shape
        if self.source is Source.SLOTS:
            return len(self.maps) - CACHED_FRAMES, height, width, channels
        if self.source is Source.PHASES:
            return frames, 2 * (height - 1), 2 * (width - 1), channels // 4
        return frames, height, width, channels


@dataclass(frozen=True, slots=True)
class Activation:
    """RMS norm and SiLU on the way to a convolution; `cache` holds its last two inputs and is moved on.

    Without a gamma frames go on as they are.
    """

    gamma: Tensor | None
    layout: Layout
    cache: Tensor | None = None


def input_shapes(layout: Layout, shape: tuple[int, int, int, int]) -> list[tuple[int, int, int, int]]:
    """The tensors a convolution reads, for frames of this shape."""
    frames, height, width, channels = shape
    if layout is Layout.STACKED:
        return [(frames, height, width, TAPS * channels)]
    if layout is Layout.SLOTS:
        return [(1, height, width, channels)] * (frames + CACHED_FRAMES)
    return [shape]


def combine(pending: Pending, activation: Activation | None, *, keep: bool) -> tuple[Tensor, list[Tensor]]:
    """The frames (empty unless `keep`) and the next convolution's inputs (none without an activation).

    Inputs are tensors of their own, so that each can go once it has been read.
    """
    if pending.maps[0].is_cuda:
        from filmgate.pipeline.decode.fast.kernels import combine_on_gpu

        combined = combine_on_gpu(pending, activation, keep=keep)
    else:
        combined = combine_in_torch(pending, activation, keep=keep)
    pending.maps, pending.residual = (), None
    return combined


def combine_in_torch(
    pending: Pending, activation: Activation | None, *, keep: bool
) -> tuple[Tensor, list[Tensor]]:
    """The reference: what the kernel does, in float32, one step at a time."""
    dtype = pending.maps[0].dtype
    frames = add_up(pending)
    if pending.bias is not None:
        frames = frames + pending.bias.float()
    if pending.residual is not None:
        frames = frames + pending.residual.float()
    kept = frames.to(dtype) if keep else frames.new_empty(0, dtype=dtype)
    if activation is None:
        return kept, []
    active = _activate(frames, activation, dtype)
    return kept, list(torch.split(active, 1)) if activation.layout is Layout.SLOTS else [active]


def add_up(pending: Pending) -> Tensor:
    """The frames themselves, in float32, before bias and residual."""
    if pending.source is Source.FRAMES:
        return pending.maps[0].float()
    if pending.source is Source.SLOTS:
        frames, *_ = pending.shape
        maps = torch.cat(pending.maps).float()
        return torch.einsum("fs,shwc->fhwc", maps.new_tensor(TRANSFORMS[frames].join), maps)
    frames, height, width, channels = pending.shape
    phases = pending.maps[0].float()
    phases = phases.view(*phases.shape[:-1], 2, 2, channels)
    whole = phases.new_empty(frames, height, width, channels)
    for down in range(2):
        for right in range(2):
            part = phases[:, down : down + height // 2, right : right + width // 2, down, right]
            whole[:, down::2, right::2] = part
    return whole


def _activate(frames: Tensor, activation: Activation, dtype: torch.dtype) -> Tensor:
    active = frames
    if activation.gamma is not None:
        norm = frames.norm(dim=-1, keepdim=True).clamp_min(TINY)
        active = frames / norm * frames.shape[-1] ** 0.5 * activation.gamma.float()
        active = torch.nn.functional.silu(active)
    if activation.cache is None:
        return active.to(dtype)
    if activation.layout is Layout.FRAMES:
        activation.cache.zero_()[-1] = active[-1]
        return active.to(dtype)
    together = torch.cat([activation.cache.float(), active])
    activation.cache.copy_(together[-CACHED_FRAMES:])
    if activation.layout is Layout.STACKED:
        return torch.cat([together[tap : tap + len(frames)] for tap in range(TAPS)], dim=-1).to(dtype)
    split = together.new_tensor(TRANSFORMS[len(frames)].split)
    return torch.einsum("sf,fhwc->shwc", split, together).to(dtype)


def soften(scores: Tensor, dtype: torch.dtype) -> Tensor:
    """The softmax over the last axis of scores in float32, in a narrower dtype."""
    if scores.is_cuda:
        from filmgate.pipeline.decode.fast.kernels import soften_on_gpu

        return soften_on_gpu(scores, dtype)
    return scores.softmax(-1).to(dtype)


def add_taps(maps: Tensor, bias: Tensor, carry: Tensor) -> Tensor:
    """A causal convolution whose taps were computed beside each other: added up over time, in float32.

    `maps` [n, height, width, 3 * c and more] holds what each tap makes of each frame; what the first two make
    of it belongs to the frames after it. `carry` [c, 2, height, width] holds what earlier frames left these,
    and is moved on. Returns [c, n, height, width].
    """
    if maps.is_cuda:
        from filmgate.pipeline.decode.fast.kernels import add_taps_on_gpu

        return add_taps_on_gpu(maps, bias, carry)
    return add_taps_in_torch(maps, bias, carry)


def add_taps_in_torch(maps: Tensor, bias: Tensor, carry: Tensor) -> Tensor:
    """The reference."""
    channels, count = len(bias), len(maps)
    planes = maps.permute(3, 0, 1, 2).float()
    sums = torch.cat([carry, carry.new_zeros(channels, count, *carry.shape[2:])], dim=1)
    for tap in range(TAPS):
        later = CACHED_FRAMES - tap
        sums[:, later : later + count] += planes[tap * channels : (tap + 1) * channels]
    carry.copy_(sums[:, count:])
    return sums[:, :count] + bias[:, None, None, None]
