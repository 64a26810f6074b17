"""`activate` in Triton: norm, modulation, SiLU and the border of the next convolution in one pass.

Imported only where a GPU is present.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

VALUES = 2048  # per program
WARPS = 4


@triton.jit
def _activate(
    source,
    lift,
    drop,
    out,
    count,
    height,
    width,
    columns,
    epsilon,
    before: tl.constexpr,
    side: tl.constexpr,
    has_norm: tl.constexpr,
    has_lift: tl.constexpr,
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
    frame = tl.maximum(place // (across * (height + 2 * side)) - before, 0)
    read = ((frame * height + row) * width + column)[:, None] * columns + lane[None, :]
    value = tl.load(source + read, mask=inside, other=0.0).to(tl.float32)
    if has_norm:
        value *= tl.rsqrt(tl.sum(value * value, 1) / columns + epsilon)[:, None]
    if has_lift:
        scale = tl.load(lift + lane, mask=lane < columns, other=0.0).to(tl.float32)
        shift = tl.load(drop + lane, mask=lane < columns, other=0.0).to(tl.float32)
        value = value * scale[None, :] + shift[None, :]
    if is_active:
        value = value / (1.0 + tl.exp(-value))
    write = place[:, None] * columns + lane[None, :]
    tl.store(out + write, value.to(out.dtype.element_ty), mask=inside)


def activate_on_gpu(
    frames: Tensor,
    modulation: tuple[Tensor, Tensor] | None,
    epsilon: float | None,
    border: tuple[int, int],
    *,
    is_active: bool,
) -> Tensor:
    """See `activate`."""
    _, columns, length, height, width = frames.shape
    before, side = border
    shape = (1, length + before, height + 2 * side, width + 2 * side, columns)
    out = torch.empty(shape, device=frames.device, dtype=frames.dtype)
    lanes = triton.next_power_of_2(columns)
    pixels = max(VALUES // lanes, 1)
    count = out.numel() // columns
    lift, drop = modulation or (frames, frames)
    _activate[(triton.cdiv(count, pixels),)](
        frames, lift, drop, out, count, height, width, columns, epsilon or 0.0,
        before=before, side=side, has_norm=epsilon is not None, has_lift=modulation is not None,
        is_active=is_active, pixels=pixels, lanes=lanes, num_warps=WARPS,
    )  # fmt: skip
    return out.permute(0, 4, 1, 2, 3)
