"""Everything between two convolutions as one pass: `combine`. Here in torch; kernels.py has it in Triton.

Frames are [frames, height, width, channels], which a convolution reads as channels-last without a copy.
"""

from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from filmgate.pipeline.decode.fast.winograd import TRANSFORMS

MAX_FRAMES = 4  # per chunk, after both temporal upsamplings
TAPS = 3  # of a convolution over time
CACHED_FRAMES = TAPS - 1  # earlier frames that a causal convolution reads
NORM_EPSILON = 1e-12  # as in torch.nn.functional.normalize


class OutputLayout(IntEnum):
    """How the output of a convolution is stored."""

    FRAMES = 0  # frames
    POINTS = 1  # one feature map per Winograd point; the output transform converts them to frames
    PHASES = 2  # four sub-pixel phases of an upsampling convolution in the channels, one extra row and column


class InputLayout(IntEnum):
    """How the next convolution reads its input."""

    FRAMES = 0  # frames; the cache starts with them, because no frames came before
    STACKED = 1  # each frame behind the two frames before it, concatenated along the channels
    POINTS = 2  # one map per Winograd point


@dataclass(slots=True)
class ConvOutput:
    """The output of a convolution before its transform, bias and residual are applied.

    `combine` consumes it and may overwrite its tensors, which take gigabytes at 720p.
    """

    layout: OutputLayout
    maps: tuple[Tensor, ...]
    bias: Tensor | None = None
    residual: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape of the frames it converts to."""
        frames, height, width, channels = self.maps[0].shape
        if self.layout is OutputLayout.POINTS:
            return len(self.maps) - CACHED_FRAMES, height, width, channels
        if self.layout is OutputLayout.PHASES:
            return frames, 2 * (height - 1), 2 * (width - 1), channels // 4
        return frames, height, width, channels


@dataclass(frozen=True, slots=True)
class InputSpec:
    """How frames become the input of the next convolution: RMS norm and SiLU, then the layout.

    Without `gamma` there is no norm and no activation. `cache` holds the last two inputs of the convolution
    and is updated.
    """

    gamma: Tensor | None
    layout: InputLayout
    cache: Tensor | None = None


def input_shapes(layout: InputLayout, shape: tuple[int, int, int, int]) -> list[tuple[int, int, int, int]]:
    """The shapes of the tensors that a convolution reads for frames of this shape."""
    frames, height, width, channels = shape
    if layout is InputLayout.STACKED:
        return [(frames, height, width, TAPS * channels)]
    if layout is InputLayout.POINTS:
        return [(1, height, width, channels)] * (frames + CACHED_FRAMES)
    return [shape]


def combine(output: ConvOutput, spec: InputSpec | None, *, keep: bool) -> tuple[Tensor, list[Tensor]]:
    """Convert the output of one convolution to frames and to the inputs of the next.

    The frames are empty unless `keep`, the inputs are empty without a `spec`. Inputs are separate tensors, so
    each can be freed once it has been read.
    """
    if output.maps[0].is_cuda:
        from filmgate.pipeline.decode.fast.kernels import combine_on_gpu

        combined = combine_on_gpu(output, spec, keep=keep)
    else:
        combined = combine_in_torch(output, spec, keep=keep)
    output.maps, output.residual = (), None
    return combined


def combine_in_torch(
    output: ConvOutput, spec: InputSpec | None, *, keep: bool
) -> tuple[Tensor, list[Tensor]]:
    """The reference for the kernel: in float32, one step at a time."""
    dtype = output.maps[0].dtype
    frames = to_frames(output)
    if output.bias is not None:
        frames = frames + output.bias.float()
    if output.residual is not None:
        frames = frames + output.residual.float()
    kept = frames.to(dtype) if keep else frames.new_empty(0, dtype=dtype)
    if spec is None:
        return kept, []
    inputs = _to_input(frames, spec, dtype)
    return kept, list(torch.split(inputs, 1)) if spec.layout is InputLayout.POINTS else [inputs]


def to_frames(output: ConvOutput) -> Tensor:
    """The frames in float32, before bias and residual."""
    if output.layout is OutputLayout.FRAMES:
        return output.maps[0].float()
    if output.layout is OutputLayout.POINTS:
        frames, *_ = output.shape
        maps = torch.cat(output.maps).float()
        return torch.einsum("fp,phwc->fhwc", maps.new_tensor(TRANSFORMS[frames].output_transform), maps)
    frames, height, width, channels = output.shape
    phases = output.maps[0].float()
    phases = phases.view(*phases.shape[:-1], 2, 2, channels)
    whole = phases.new_empty(frames, height, width, channels)
    for down in range(2):
        for right in range(2):
            part = phases[:, down : down + height // 2, right : right + width // 2, down, right]
            whole[:, down::2, right::2] = part
    return whole


def _to_input(frames: Tensor, spec: InputSpec, dtype: torch.dtype) -> Tensor:
    active = frames
    if spec.gamma is not None:
        norm = frames.norm(dim=-1, keepdim=True).clamp_min(NORM_EPSILON)
        active = frames / norm * frames.shape[-1] ** 0.5 * spec.gamma.float()
        active = torch.nn.functional.silu(active)
    if spec.cache is None:
        return active.to(dtype)
    if spec.layout is InputLayout.FRAMES:
        spec.cache.zero_()[-1] = active[-1]
        return active.to(dtype)
    together = torch.cat([spec.cache.float(), active])
    spec.cache.copy_(together[-CACHED_FRAMES:])
    if spec.layout is InputLayout.STACKED:
        return torch.cat([together[tap : tap + len(frames)] for tap in range(TAPS)], dim=-1).to(dtype)
    transform = together.new_tensor(TRANSFORMS[len(frames)].input_transform)
    return torch.einsum("pf,fhwc->phwc", transform, together).to(dtype)


def softmax(scores: Tensor, dtype: torch.dtype) -> Tensor:
    """The softmax over the last axis of float32 scores, in a narrower dtype."""
    if scores.is_cuda:
        from filmgate.pipeline.decode.fast.kernels import softmax_on_gpu

        return softmax_on_gpu(scores, dtype)
    return scores.softmax(-1).to(dtype)


def add_taps(maps: Tensor, bias: Tensor, overlap: Tensor) -> Tensor:
    """Sum the taps of a causal convolution over time, in float32 (overlap-add).

    `maps` [n, height, width, at least 3 * c] holds the product of each tap with each frame, tap after tap in
    the channels. The products of the first two taps belong to later frames: `overlap` [c, 2, height, width]
    holds the sums for the next two frames and is updated. Returns [c, n, height, width].
    """
    if maps.is_cuda:
        from filmgate.pipeline.decode.fast.kernels import add_taps_on_gpu

        return add_taps_on_gpu(maps, bias, overlap)
    return add_taps_in_torch(maps, bias, overlap)


def add_taps_in_torch(maps: Tensor, bias: Tensor, overlap: Tensor) -> Tensor:
    """The reference for the kernel."""
    channels, count = len(bias), len(maps)
    planes = maps.permute(3, 0, 1, 2).float()
    sums = torch.cat([overlap, overlap.new_zeros(channels, count, *overlap.shape[2:])], dim=1)
    for tap in range(TAPS):
        later = CACHED_FRAMES - tap
        sums[:, later : later + count] += planes[tap * channels : (tap + 1) * channels]
    overlap.copy_(sums[:, count:])
    return sums[:, :count] + bias[:, None, None, None]
