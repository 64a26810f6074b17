"""What runs between two convolutions when a norm covers a whole chunk (CogVideoX).

A GroupNorm needs the statistics of all frames of the chunk, so the work of `combine` takes two passes:

    to_frames_and_sums   per group of frames: convert the convolution's output, add up partial statistics
    scale_and_shift      per chunk: the affine form of the norm, from all partial statistics
    normalise            per group of frames: norm, modulation by the latents, SiLU, next convolution's input

Here in torch; group_kernels.py has them in Triton. Frames are [frames, height, width, channels] and come in
groups of one, two or four, the numbers that the Winograd transforms take.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import silu

from filmgate.pipeline.decode.fast.passes import CACHED_FRAMES, ConvOutput, InputLayout, to_frames
from filmgate.pipeline.decode.fast.winograd import TRANSFORMS


@dataclass(frozen=True, slots=True)
class GroupNorm:
    """The weights of a norm, in float32."""

    gamma: Tensor
    beta: Tensor
    groups: int
    epsilon: float


@dataclass(frozen=True, slots=True)
class Modulation:
    """What a norm computes for a group of frames: (frames * scale + shift) * y + b.

    `scale_and_shift` is [2, channels]. `y_and_b` [n, h, w, 2 * channels] holds y and b for each latent pixel
    of the group's n latent frames. Neither y nor b is ever stored at the size of the frames.
    """

    scale_and_shift: Tensor
    y_and_b: Tensor


@dataclass(frozen=True, slots=True)
class CausalCache:
    """The last two inputs of a causal convolution; `normalise` updates them.

    At the start of a clip (`is_start`) copies of the first frame take the place of the frames before it.
    """

    frames: Tensor
    is_start: bool


def to_frames_and_sums(output: ConvOutput, groups: int, repeats: int = 1) -> tuple[Tensor, Tensor]:
    """The frames of a convolution's output, each repeated `repeats` times, and their partial sums.

    The sums [2, groups, n] are sums of the values and of their squares; each covers some of the pixels.
    Frames overwrite the residual, or the maps, where shapes allow.
    """
    if output.maps[0].is_cuda:
        from filmgate.pipeline.decode.fast.group_kernels import to_frames_and_sums_on_gpu

        frames_and_sums = to_frames_and_sums_on_gpu(output, groups, repeats)
    else:
        frames_and_sums = to_frames_and_sums_in_torch(output, groups, repeats)
    output.maps, output.residual = (), None
    return frames_and_sums


def to_frames_and_sums_in_torch(output: ConvOutput, groups: int, repeats: int = 1) -> tuple[Tensor, Tensor]:
    """The reference for the kernel: in float32, one step at a time."""
    frames = to_frames(output)
    if output.bias is not None:
        frames = frames + output.bias.float()
    if output.residual is not None:
        frames = frames + output.residual.float()
    frames = frames.repeat_interleave(repeats, dim=0)
    grouped = frames.reshape(*frames.shape[:-1], groups, -1)
    sums = torch.stack([part.sum((0, 1, 2, 4)) for part in (grouped, grouped.square())])
    return frames.to(output.maps[0].dtype), sums.unsqueeze(-1)


def scale_and_shift(sums: Sequence[Tensor], norm: GroupNorm, count: int) -> Tensor:
    """Scale and shift [2, channels] of a norm over a chunk with `count` values per group of channels."""
    together = sums[0] if len(sums) == 1 else torch.cat(list(sums), dim=-1)
    if together.is_cuda:
        from filmgate.pipeline.decode.fast.group_kernels import scale_and_shift_on_gpu

        return scale_and_shift_on_gpu(together, norm, count)
    return scale_and_shift_in_torch(together, norm, count)


def scale_and_shift_in_torch(sums: Tensor, norm: GroupNorm, count: int) -> Tensor:
    """The reference for the kernel. Double precision: the variance is a small difference of large sums."""
    mean, square = sums.double().sum(-1) / count
    inverse = ((square - mean.square()).clamp_min(0) + norm.epsilon).rsqrt()
    each = len(norm.gamma) // norm.groups
    scale = inverse.repeat_interleave(each) * norm.gamma
    return torch.stack([scale, norm.beta - mean.repeat_interleave(each) * scale]).float()


def normalise(
    frames: Tensor, modulation: Modulation, layout: InputLayout, cache: CausalCache | None = None
) -> list[Tensor]:
    """Normalise, modulate and activate a group of frames: the inputs of the next convolution.

    With InputLayout.POINTS the inputs are separate tensors, so each can be freed once it has been read.
    Without a cache the result may overwrite the frames.
    """
    if frames.is_cuda:
        from filmgate.pipeline.decode.fast.group_kernels import normalise_on_gpu

        return normalise_on_gpu(frames, modulation, layout, cache)
    return normalise_in_torch(frames, modulation, layout, cache)


def normalise_in_torch(
    frames: Tensor, modulation: Modulation, layout: InputLayout, cache: CausalCache | None = None
) -> list[Tensor]:
    """The reference for the kernel."""
    scale, shift = modulation.scale_and_shift
    y, b = _at_size_of(frames, modulation.y_and_b.float()).chunk(2, dim=-1)
    active = silu((frames.float() * scale + shift) * y + b)
    if cache is None:
        return [active.to(frames.dtype)]
    before = active[:1].expand(CACHED_FRAMES, -1, -1, -1) if cache.is_start else cache.frames.float()
    together = torch.cat([before, active])
    cache.frames.copy_(together[-CACHED_FRAMES:])
    if layout is InputLayout.FRAMES:
        return [active.to(frames.dtype)]
    transform = together.new_tensor(TRANSFORMS[len(frames)].input_transform)
    return list(torch.split(torch.einsum("pf,fhwc->phwc", transform, together).to(frames.dtype), 1))


def _at_size_of(frames: Tensor, maps: Tensor) -> Tensor:
    for axis in range(3):
        maps = maps.repeat_interleave(frames.shape[axis] // maps.shape[axis], dim=axis)
    return maps
