"""What stands between two convolutions, in Triton: each function of `activation` is one pass over memory.

Imported only where a GPU is present.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from filmgate.pipeline.decode.fast.activation import Border, NormActivation
from filmgate.pipeline.launch import Launcher, launch

VALUES = 2048  # per program
MAX_SUM_PROGRAMS = 2048
WARPS = 4


@triton.jit
def _activate(
    source,
    bias,
    gamma,
    beta,
    out,
    count,
    length,
    height,
    width,
    columns,
    epsilon,
    before: tl.constexpr,
    side: tl.constexpr,
    has_bias: tl.constexpr,
    has_norm: tl.constexpr,
    has_affine: tl.constexpr,
    is_active: tl.constexpr,
    pixels: tl.constexpr,
    lanes: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64) * pixels + tl.arange(0, pixels)
    lane = tl.arange(0, lanes)
    inside = (place < count)[:, None] & (lane < columns)[None, :]
    across = width + 2 * side
    column = tl.minimum(tl.maximum(place % across - side, 0), width - 1)
    row = tl.minimum(tl.maximum((place // across) % (height + 2 * side) - side, 0), height - 1)
    frame = tl.minimum(tl.maximum(place // (across * (height + 2 * side)) - before, 0), length - 1)
    read = ((frame * height + row) * width + column)[:, None] * columns + lane[None, :]
    value = tl.load(source + read, mask=inside, other=0.0).to(tl.float32)
    if has_bias:
        value += tl.load(bias + lane, mask=lane < columns, other=0.0).to(tl.float32)[None, :]
    if has_norm:
        value *= tl.rsqrt(tl.sum(value * value, 1) / columns + epsilon)[:, None]
    if has_affine:
        scale = tl.load(gamma + lane, mask=lane < columns, other=0.0).to(tl.float32)
        shift = tl.load(beta + lane, mask=lane < columns, other=0.0).to(tl.float32)
        value = value * scale[None, :] + shift[None, :]
    if is_active:
        value = value / (1.0 + tl.exp(-value))
    write = place[:, None] * columns + lane[None, :]
    tl.store(out + write, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _add(
    values, bias, other, count, columns, has_bias: tl.constexpr, has_other: tl.constexpr, block: tl.constexpr
):
    place = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = place < count
    value = tl.load(values + place, mask=inside, other=0.0).to(tl.float32)
    if has_bias:
        value += tl.load(bias + place % columns, mask=inside, other=0.0).to(tl.float32)
    if has_other:
        value += tl.load(other + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(values + place, value.to(values.dtype.element_ty), mask=inside)


@triton.jit
def _sums(source, out, count, columns, rounds, rows: tl.constexpr, lanes: tl.constexpr):
    lane = tl.arange(0, lanes)
    first = tl.program_id(0).to(tl.int64) * rows * rounds
    sums = tl.zeros((rows, lanes), tl.float32)
    squares = tl.zeros((rows, lanes), tl.float32)
    for step in range(rounds):
        row = first + step * rows + tl.arange(0, rows)
        inside = (row < count)[:, None] & (lane < columns)[None, :]
        value = tl.load(source + row[:, None] * columns + lane[None, :], mask=inside, other=0.0).to(
            tl.float32
        )
        sums += value
        squares += value * value
    write = out + tl.program_id(0).to(tl.int64) * 2 * columns + lane
    tl.store(write, tl.sum(sums, 0), mask=lane < columns)
    tl.store(write + columns, tl.sum(squares, 0), mask=lane < columns)


_launch_activate = Launcher(_activate)
_launch_add = Launcher(_add)


def activate_on_gpu(frames: Tensor, steps: NormActivation, border: Border, out: Tensor) -> None:
    """See `activate`."""
    _, columns, length, height, width = frames.shape
    lanes = triton.next_power_of_2(columns)
    pixels = max(VALUES // lanes, 1)
    count = out.numel() // columns
    gamma, beta = steps.modulation or (frames, frames)
    _launch_activate(
        triton.cdiv(count, pixels), WARPS,
        (frames, frames if steps.bias is None else steps.bias, gamma, beta, out),
        count, length, height, width, columns, steps.epsilon or 0.0,
        border.before, border.side, steps.bias is not None, steps.epsilon is not None,
        steps.modulation is not None, steps.is_active, pixels, lanes,
    )  # fmt: skip


def add_on_gpu(frames: Tensor, bias: Tensor | None, other: Tensor | None) -> None:
    """See `add_to`."""
    count = frames.numel()
    _launch_add(
        triton.cdiv(count, VALUES), WARPS,
        (frames, frames if bias is None else bias, frames if other is None else other),
        count, frames.shape[1], bias is not None, other is not None, VALUES,
    )  # fmt: skip


def channel_sums_on_gpu(frames: Tensor) -> tuple[Tensor, Tensor]:
    """See `channel_sums`."""
    columns = frames.shape[1]
    count = frames.numel() // columns
    lanes = triton.next_power_of_2(columns)
    rows = max(VALUES // lanes, 1)
    rounds = triton.cdiv(count, rows * MAX_SUM_PROGRAMS)
    programs = triton.cdiv(count, rows * rounds)
    out = torch.empty((programs, 2, columns), device=frames.device, dtype=torch.float32)
    launch(_sums, programs, frames, out, count, columns, rounds, rows=rows, lanes=lanes, num_warps=WARPS)
    sums, squares = out.sum(0)
    return sums, squares
