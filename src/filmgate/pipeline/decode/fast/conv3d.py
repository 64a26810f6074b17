"""Convolutions over three frames with half of the products: Winograd's F(4, 3) over time.

LTX-Video and HunyuanVideo decode many frames at once. Each group of four frames becomes six maps, one per
point. Each map is convolved as a picture, and the six results become four frames.
"""

from collections.abc import Sequence
from functools import cached_property
from math import ceil

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, conv3d

from filmgate.pipeline.decode.fast.passes import CACHED_FRAMES, MAX_FRAMES
from filmgate.pipeline.decode.fast.winograd import TRANSFORMS

TRANSFORM = TRANSFORMS[MAX_FRAMES]
# With fewer frames or pixels, one convolution over all three axes is faster.
MIN_FRAMES = 3
MIN_PIXELS = 1 << 12  # of all groups together
# The most values of the maps that are in memory together: enough to keep a GPU busy.
MAX_VALUES = 1 << 27


class WinogradConv3d(nn.Module):
    """A Conv3d of 3 x 3 x 3 without its bias, for frames [1, C, T, h, w] with channels last."""

    def __init__(self, conv: nn.Conv3d) -> None:
        super().__init__()
        self.weight, self.bias = conv.weight, conv.bias
        self.kernel_size = conv.kernel_size
        self.padding = tuple(int(side) for side in conv.padding)

    def forward(self, frames: Tensor) -> Tensor:
        count, pixels = frames.shape[2] - CACHED_FRAMES, frames[0, 0, 0].numel()
        if count < MIN_FRAMES or ceil(count / MAX_FRAMES) * pixels < MIN_PIXELS:
            return conv3d(frames, self.weight, padding=self.padding)
        return self._convolve_groups(frames[0].permute(1, 2, 3, 0).contiguous())

    def _convolve_groups(self, pictures: Tensor) -> Tensor:
        """Frames [T + 2, h, w, C] to [1, C', T, h', w'], a few groups at a time."""
        count, height, width = len(pictures) - CACHED_FRAMES, *pictures.shape[1:3]
        down, across = (2 * side - 2 for side in self.padding[1:])
        out = pictures.new_empty((count, height + down, width + across, len(self.weight)))
        values = TRANSFORM.points * max(pictures[0].numel(), out[0].numel())
        step = max(MAX_VALUES // values, 1) * MAX_FRAMES
        for start in range(0, count, step):
            maps = self._convolve(to_points(pictures[start : start + step + CACHED_FRAMES]))
            write_frames(maps, out[start : start + step])
        return out.permute(3, 0, 1, 2)[None]

    def _convolve(self, points: list[Tensor]) -> list[Tensor]:
        """Each map with the weights of its point. Its memory is free as soon as it has been read."""
        maps = []
        for weight in self._points:
            picture = points.pop(0).permute(0, 3, 1, 2)
            maps.append(conv2d(picture, weight, padding=self.padding[1:]).permute(0, 2, 3, 1).contiguous())
        return maps

    @cached_property
    def _points(self) -> list[Tensor]:
        """The weights of each point, made at first use: they take twice the memory of the layer's own."""
        transform = torch.tensor(TRANSFORM.filter_transform, device=self.weight.device)
        points = torch.einsum("pt,oithw->poihw", transform, self.weight.float()).to(self.weight.dtype)
        made = [point.contiguous(memory_format=torch.channels_last) for point in points]
        if self.weight.is_cuda:
            # From now on any stream may read them.
            torch.cuda.current_stream(self.weight.device).synchronize()
        return made


def replace_convolutions(module: nn.Module) -> None:
    """Every Conv3d of the module that can become a WinogradConv3d does. Their callers add the bias."""
    for parent in list(module.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.Conv3d) and child.kernel_size == (3, 3, 3) and child.padding[0] == 0:
                setattr(parent, name, WinogradConv3d(child))


def convolve(layer: nn.Conv3d | WinogradConv3d, frames: Tensor) -> Tensor:
    """A convolution without its bias."""
    if isinstance(layer, WinogradConv3d):
        convolved: Tensor = layer(frames)
        return convolved
    return conv3d(frames, layer.weight, None, layer.stride, layer.padding)


def to_points(pictures: Tensor) -> list[Tensor]:
    """Frames [T + 2, h, w, C] to one map [groups of four, h, w, C] per point.

    If the last group is incomplete, the last frame is repeated.
    """
    groups = ceil((len(pictures) - CACHED_FRAMES) / MAX_FRAMES)
    if pictures.is_cuda:
        from filmgate.pipeline.decode.fast.conv3d_kernels import to_points_on_gpu

        return to_points_on_gpu(pictures, groups)
    return list(to_points_in_torch(pictures, groups))


def to_points_in_torch(pictures: Tensor, groups: int) -> Tensor:
    """The reference implementation."""
    starts = torch.arange(groups)[:, None] * MAX_FRAMES
    read = (starts + torch.arange(TRANSFORM.points)).clamp(max=len(pictures) - 1)
    transform = torch.tensor(TRANSFORM.input_transform)
    return torch.einsum("pf,gfhwc->pghwc", transform, pictures[read].float()).to(pictures.dtype)


def write_frames(maps: Sequence[Tensor], out: Tensor) -> None:
    """One map [groups, h, w, C] per point to frames; `out` takes as many as it has room for."""
    if out.is_cuda:
        from filmgate.pipeline.decode.fast.conv3d_kernels import write_frames_on_gpu

        write_frames_on_gpu(maps, out)
    else:
        out.copy_(to_frames_in_torch(maps)[: len(out)])


def to_frames_in_torch(maps: Sequence[Tensor]) -> Tensor:
    """The reference implementation."""
    transform = torch.tensor(TRANSFORM.output_transform)
    frames = torch.einsum("fp,pghwc->gfhwc", transform, torch.stack(list(maps)).float())
    return frames.flatten(0, 1).to(maps[0].dtype)
