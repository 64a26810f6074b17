"""The transforms of `conv3d` in Triton: each value is read and written once.

Imported only where a GPU is present.
"""

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from filmgate.pipeline.decode.fast.kernels import input_transform, output_transform, read, write
from filmgate.pipeline.decode.fast.passes import CACHED_FRAMES, MAX_FRAMES
from filmgate.pipeline.launch import Launcher

# Values of each frame per program, and warps: the fastest of those measured on one H200.
VALUES, WARPS = 512, 2
FRAMES = tl.constexpr(MAX_FRAMES)


@triton.jit
def _read_frame(source, frame, count, size, at, mask):
    return read(source, tl.minimum(frame, count - 1) * size + at, mask)


@triton.jit
def _to_points(source, in0, in1, in2, in3, in4, in5, count, size, values: tl.constexpr):
    programs = tl.cdiv(size, values)
    group = (tl.program_id(0) // programs).to(tl.int64)
    at = (tl.program_id(0) % programs) * values + tl.arange(0, values)
    mask = at < size
    frame = group * FRAMES
    f0 = _read_frame(source, frame, count, size, at, mask)
    f1 = _read_frame(source, frame + 1, count, size, at, mask)
    f2 = _read_frame(source, frame + 2, count, size, at, mask)
    f3 = _read_frame(source, frame + 3, count, size, at, mask)
    f4 = _read_frame(source, frame + 4, count, size, at, mask)
    f5 = _read_frame(source, frame + 5, count, size, at, mask)
    input_transform(in0, in1, in2, in3, in4, in5, group * size + at, mask, f0, f1, f2, f3, f4, f5, FRAMES)


@triton.jit
def _to_frames(map0, map1, map2, map3, map4, map5, out, count, size, values: tl.constexpr):
    programs = tl.cdiv(size, values)
    group = (tl.program_id(0) // programs).to(tl.int64)
    at = (tl.program_id(0) % programs) * values + tl.arange(0, values)
    mask = at < size
    y0, y1, y2, y3 = output_transform(map0, map1, map2, map3, map4, map5, group * size + at, mask, FRAMES)
    frame = group * FRAMES
    at += frame * size
    write(out, at, y0, mask)
    write(out, at + size, y1, mask & (frame + 1 < count))
    write(out, at + 2 * size, y2, mask & (frame + 2 < count))
    write(out, at + 3 * size, y3, mask & (frame + 3 < count))


_launch_to_points = Launcher(_to_points)
_launch_to_frames = Launcher(_to_frames)


def to_points_on_gpu(pictures: Tensor, groups: int) -> list[Tensor]:
    """See `to_points`."""
    size = pictures[0].numel()
    shape = (groups, *pictures.shape[1:])
    points = [pictures.new_empty(shape) for _ in range(MAX_FRAMES + CACHED_FRAMES)]
    programs = groups * triton.cdiv(size, VALUES)
    _launch_to_points(programs, WARPS, (pictures, *points), len(pictures), size, VALUES)
    return points


def write_frames_on_gpu(maps: Sequence[Tensor], out: Tensor) -> None:
    """See `write_frames`."""
    size = out[0].numel()
    programs = len(maps[0]) * triton.cdiv(size, VALUES)
    _launch_to_frames(programs, WARPS, (*maps, out), len(out), size, VALUES)
