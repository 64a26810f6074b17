"""What stands between two convolutions where a norm is over a whole chunk: `gather`, `settle`, `condition`.

A GroupNorm cannot begin before the chunk's last frame is there, so what `combine` does in one pass takes two,
with the statistics between them. Here in torch; group_kernels.py has it in Triton.

Frames are [frames, height, width, channels] and come in groups of one, two or four, as Winograd takes them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import silu

from filmgate.pipeline.decode.fast.passes import CACHED_FRAMES, Layout, Pending, add_up
from filmgate.pipeline.decode.fast.winograd import TRANSFORMS


@dataclass(frozen=True, slots=True)
class GroupNorm:
    """A norm's weights, in float32."""

    gamma: Tensor
    beta: Tensor
    groups: int
    epsilon: float


@dataclass(frozen=True, slots=True)
class Conditioning:
    """What a norm makes of a group of frames: (frames * scale + shift) * y + b.

    `settled` [2, channels] holds scale and shift, `looked_up` [n, h, w, 2 * channels] y and b for each latent
    pixel of the group's n latent frames. Neither y nor b is ever written out at the frames' size.
    """

    settled: Tensor
    looked_up: Tensor


@dataclass(frozen=True, slots=True)
class Memory:
    """A causal convolution's last two inputs, moved on. A clip begins with copies of its first frame."""

    cache: Tensor
    begins: bool


def gather(pending: Pending, groups: int, times: int = 1) -> tuple[Tensor, Tensor]:
    """The frames a convolution left behind, each `times` in a row, and partial sums [2, groups, n] of them.

    The sums are of values and of their squares, over some pixels each. Written over the residual, or over
    what was read, where shapes allow.
    """
    if pending.maps[0].is_cuda:
        from filmgate.pipeline.decode.fast.group_kernels import gather_on_gpu

        gathered = gather_on_gpu(pending, groups, times)
    else:
        gathered = gather_in_torch(pending, groups, times)
    pending.maps, pending.residual = (), None
    return gathered


def gather_in_torch(pending: Pending, groups: int, times: int = 1) -> tuple[Tensor, Tensor]:
    """The reference: what the kernel does, in float32, one step at a time."""
    frames = add_up(pending)
    if pending.bias is not None:
        frames = frames + pending.bias.float()
    if pending.residual is not None:
        frames = frames + pending.residual.float()
    frames = frames.repeat_interleave(times, dim=0)
    grouped = frames.reshape(*frames.shape[:-1], groups, -1)
    sums = torch.stack([part.sum((0, 1, 2, 4)) for part in (grouped, grouped.square())])
    return frames.to(pending.maps[0].dtype), sums.unsqueeze(-1)


def settle(sums: Sequence[Tensor], norm: GroupNorm, count: int) -> Tensor:
    """Scale and shift [2, channels] of a chunk with `count` values in each group of channels."""
    together = sums[0] if len(sums) == 1 else torch.cat(list(sums), dim=-1)
    if together.is_cuda:
        from filmgate.pipeline.decode.fast.group_kernels import settle_on_gpu

        return settle_on_gpu(together, norm, count)
    return settle_in_torch(together, norm, count)


def settle_in_torch(sums: Tensor, norm: GroupNorm, count: int) -> Tensor:
    """The reference. Double precision: a mean far from zero leaves little of the squares."""
    mean, square = sums.double().sum(-1) / count
    inverse = ((square - mean.square()).clamp_min(0) + norm.epsilon).rsqrt()
    each = len(norm.gamma) // norm.groups
    scale = inverse.repeat_interleave(each) * norm.gamma
    return torch.stack([scale, norm.beta - mean.repeat_interleave(each) * scale]).float()


def condition(
    frames: Tensor, conditioning: Conditioning, layout: Layout, memory: Memory | None = None
) -> list[Tensor]:
    """A group of frames normalised, conditioned and activated: what the next convolution reads.

    Slots are tensors of their own, so that each can go once it has been read. Frames without a memory are
    written over those given.
    """
    if frames.is_cuda:
        from filmgate.pipeline.decode.fast.group_kernels import condition_on_gpu

        return condition_on_gpu(frames, conditioning, layout, memory)
    return condition_in_torch(frames, conditioning, layout, memory)


def condition_in_torch(
    frames: Tensor, conditioning: Conditioning, layout: Layout, memory: Memory | None = None
) -> list[Tensor]:
    """The reference."""
    scale, shift = conditioning.settled
    y, b = _at_size_of(frames, conditioning.looked_up.float()).chunk(2, dim=-1)
    active = silu((frames.float() * scale + shift) * y + b)
    if memory is None:
        return [active.to(frames.dtype)]
    before = active[:1].expand(CACHED_FRAMES, -1, -1, -1) if memory.begins else memory.cache.float()
    together = torch.cat([before, active])
    memory.cache.copy_(together[-CACHED_FRAMES:])
    if layout is Layout.FRAMES:
        return [active.to(frames.dtype)]
    split = together.new_tensor(TRANSFORMS[len(frames)].split)
    return list(torch.split(torch.einsum("sf,fhwc->shwc", split, together).to(frames.dtype), 1))


def _at_size_of(frames: Tensor, maps: Tensor) -> Tensor:
    for axis in range(3):
        maps = maps.repeat_interleave(frames.shape[axis] // maps.shape[axis], dim=axis)
    return maps
