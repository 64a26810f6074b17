"""YUV 4:2:0 in Triton: one launch per chunk that reads each frame once. Imported only on a GPU."""

import triton
import triton.language as tl
from torch import Tensor

from filmgate.pipeline.launch import launch
from filmgate.pipeline.transfer.colour import (
    CHROMA_SCALE,
    CHROMA_SHIFT,
    LUMA_SCALE,
    LUMA_SHIFT,
    TO_BLUE_DIFFERENCE,
    TO_LUMA,
    TO_RED_DIFFERENCE,
)

COLUMNS = 512  # per program, in each of two rows

Y_RED, Y_GREEN, Y_BLUE = (tl.constexpr(weight) for weight in TO_LUMA)
U_RED, U_GREEN, U_BLUE = (tl.constexpr(weight) for weight in TO_BLUE_DIFFERENCE)
V_RED, V_GREEN, V_BLUE = (tl.constexpr(weight) for weight in TO_RED_DIFFERENCE)
Y_SCALE, Y_SHIFT = tl.constexpr(LUMA_SCALE), tl.constexpr(LUMA_SHIFT)
UV_SCALE, UV_SHIFT = tl.constexpr(CHROMA_SCALE), tl.constexpr(CHROMA_SHIFT)
LARGEST = tl.constexpr(3e38)  # neither infinity nor NaN compares as smaller
ROUNDER = tl.constexpr(1.5 * 2**23)  # adding and subtracting it rounds half to even, as torch does


@triton.jit
def _rows(pointer, at, width, mask, is_finite):
    """Return two rows of a plane, clamped. Clears `is_finite` if one contains NaN or infinity."""
    top = tl.load(pointer + at, mask=mask, other=0.0).to(tl.float32)
    bottom = tl.load(pointer + at + width, mask=mask, other=0.0).to(tl.float32)
    are_finite = (tl.abs(top) < LARGEST) & (tl.abs(bottom) < LARGEST)
    tl.store(is_finite, 0, mask=tl.min(are_finite.to(tl.int32), axis=0) == 0)
    return tl.minimum(tl.maximum(top, -1.0), 1.0), tl.minimum(tl.maximum(bottom, -1.0), 1.0)


@triton.jit
def _write(pointer, at, value, mask):
    tl.store(pointer + at, ((value + ROUNDER) - ROUNDER).to(tl.int32).to(tl.uint8), mask=mask)


@triton.jit
def _halved(top, bottom, columns: tl.constexpr):
    return tl.sum(tl.reshape(top + bottom, (columns // 2, 2)), axis=1) * 0.25


@triton.jit
def _to_yuv(frames, out, is_finite, height, width, channel_step, frame_step, columns: tl.constexpr):
    row, frame = tl.program_id(1), tl.program_id(2)
    column = tl.program_id(0) * columns + tl.arange(0, columns)
    mask = column < width
    at = frame.to(tl.int64) * frame_step + (2 * row).to(tl.int64) * width + column
    plane = channel_step.to(tl.int64)  # in a long clip two planes exceed 32 bits
    red, green, blue = frames, frames + plane, frames + 2 * plane
    red0, red1 = _rows(red, at, width, mask, is_finite)
    green0, green1 = _rows(green, at, width, mask, is_finite)
    blue0, blue1 = _rows(blue, at, width, mask, is_finite)

    size = height.to(tl.int64) * width
    luma = out + frame * (size * 3 // 2)
    to = (2 * row).to(tl.int64) * width + column
    _write(luma, to, (red0 * Y_RED + green0 * Y_GREEN + blue0 * Y_BLUE) * Y_SCALE + Y_SHIFT, mask)
    _write(luma, to + width, (red1 * Y_RED + green1 * Y_GREEN + blue1 * Y_BLUE) * Y_SCALE + Y_SHIFT, mask)

    r, g, b = _halved(red0, red1, columns), _halved(green0, green1, columns), _halved(blue0, blue1, columns)
    half = tl.program_id(0) * (columns // 2) + tl.arange(0, columns // 2)
    inside = half < width // 2
    to = row.to(tl.int64) * (width // 2) + half
    _write(luma + size, to, (r * U_RED + g * U_GREEN + b * U_BLUE) * UV_SCALE + UV_SHIFT, inside)
    _write(luma + size + size // 4, to, (r * V_RED + g * V_GREEN + b * V_BLUE) * UV_SCALE + UV_SHIFT, inside)


def convert_on_gpu(frames: Tensor, out: Tensor, is_finite: Tensor | None = None) -> None:
    """Convert with one launch; see `Yuv420.convert`."""
    if is_finite is None:
        is_finite = out.new_ones(1)
    _, count, height, width = frames.shape
    if frames.stride()[2:] != (width, 1):
        frames = frames.contiguous()
    grid = (triton.cdiv(width, COLUMNS), height // 2, count)
    steps = frames.stride(0), frames.stride(1)
    launch(_to_yuv, grid, frames, out, is_finite, height, width, *steps, columns=COLUMNS)
