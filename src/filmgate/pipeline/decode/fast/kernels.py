"""`combine`, `add_taps` and `soften` in Triton: one read of what there is, one write of what is next read.

A program takes a few pixels with all their channels and all their frames, so the norm over channels, the sum
over slots and the move of the cache need nothing from any other program. Frames come in ones, twos and fours;
helpers carry four values and leave those beyond `frames` to the compiler. Imported on a GPU alone.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from filmgate.pipeline.decode.fast.passes import (
    CACHED_FRAMES,
    MOST_FRAMES,
    TINY,
    Activation,
    Layout,
    Pending,
    Source,
    input_shapes,
)
from filmgate.pipeline.decode.fast.winograd import FAR, NEAR

# A program's elements (pixels times lanes) and its warps, by lanes: the best of those tried. A pair that
# suits one width may run another at half its speed.
BLOCKS = {128: (512, 2), 256: (512, 2), 512: (1024, 2), 1024: (2048, 4)}
OTHER_BLOCK = (2048, 8)
PIXELS = 256  # a program's of `add_taps`
ROW_PER_WARP = 1024  # values of a row of `soften`

SLOTS = tl.constexpr(int(Source.SLOTS))
PHASES = tl.constexpr(int(Source.PHASES))
TO_NOTHING = tl.constexpr(-1)
TO_FRAMES = tl.constexpr(int(Layout.FRAMES))
TO_SLOTS = tl.constexpr(int(Layout.SLOTS))
A = tl.constexpr(float(NEAR))
B = tl.constexpr(float(FAR))
AA = tl.constexpr(float(NEAR**2))
BB = tl.constexpr(float(FAR**2))
AAA = tl.constexpr(float(NEAR**3))
BBB = tl.constexpr(float(FAR**3))
AABB = tl.constexpr(float((NEAR * FAR) ** 2))
AA_PLUS_BB = tl.constexpr(float(NEAR**2 + FAR**2))
EPSILON = tl.constexpr(TINY)


@triton.jit
def read(pointer, offsets, mask):
    return tl.load(pointer + offsets, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def write(pointer, offsets, value, mask):
    tl.store(pointer + offsets, value.to(pointer.dtype.element_ty), mask=mask)


@triton.jit
def read_frames(pointer, at, step, mask, frames: tl.constexpr):
    y0 = read(pointer, at, mask)
    y1, y2, y3 = y0, y0, y0
    if frames > 1:
        y1 = read(pointer, at + step, mask)
    if frames > 2:
        y2, y3 = read(pointer, at + 2 * step, mask), read(pointer, at + 3 * step, mask)
    return y0, y1, y2, y3


@triton.jit
def write_frames(pointer, at, step, mask, y0, y1, y2, y3, frames: tl.constexpr):
    write(pointer, at, y0, mask)
    if frames > 1:
        write(pointer, at + step, y1, mask)
    if frames > 2:
        write(pointer, at + 2 * step, y2, mask)
        write(pointer, at + 3 * step, y3, mask)


@triton.jit
def join(map0, map1, map2, map3, map4, map5, at, mask, frames: tl.constexpr):
    """Winograd's output transform: maps of slots to frames."""
    m0, m1 = read(map0, at, mask), read(map1, at, mask)
    m2, m3 = read(map2, at, mask), read(map3, at, mask)
    if frames == 2:
        y0, y1 = m0 + m1 + m2, m1 - m2 - m3
        y2, y3 = y0, y1
    else:
        m4, m5 = read(map4, at, mask), read(map5, at, mask)
        near_sum, near_gap = m1 + m2, m1 - m2
        far_sum, far_gap = m3 + m4, m3 - m4
        y0 = m0 + near_sum + far_sum
        y1 = near_gap * A + far_gap * B
        y2 = near_sum * AA + far_sum * BB
        y3 = near_gap * AAA + far_gap * BBB + m5
    return y0, y1, y2, y3


@triton.jit
def shuffle(pointer, pixel, channel, mask, height, width, frames: tl.constexpr, channels: tl.constexpr):
    """Sub-pixel phases to frames. A phase reads half a pixel further on: there is one more row and column."""
    row, column = pixel // width, pixel % width
    down, right = row % 2, column % 2
    rows, columns = height // 2 + 1, width // 2 + 1
    place = ((row // 2 + down) * columns + column // 2 + right).to(tl.int64) * 4 + down * 2 + right
    at = place[:, None] * channels + channel[None, :]
    step = rows.to(tl.int64) * columns * 4 * channels
    return read_frames(pointer, at, step, mask, frames)


@triton.jit
def add_up(
    map0, map1, map2, map3, map4, map5, pixel, channel, at, step, mask,
    height, width, frames: tl.constexpr, source: tl.constexpr, channels: tl.constexpr,
):  # fmt: skip
    """The frames a convolution left behind, before bias and residual."""
    if source == SLOTS:
        y0, y1, y2, y3 = join(map0, map1, map2, map3, map4, map5, at, mask, frames)
    elif source == PHASES:
        y0, y1, y2, y3 = shuffle(map0, pixel, channel, mask, height, width, frames, channels)
    else:
        y0, y1, y2, y3 = read_frames(map0, at, step, mask, frames)
    return y0, y1, y2, y3


@triton.jit
def _activate(frame, gamma, root):
    norm = tl.sqrt(tl.sum(frame * frame, axis=1))
    scaled = frame * (root / tl.maximum(norm, EPSILON))[:, None] * gamma[None, :]
    return scaled * tl.sigmoid(scaled)


@triton.jit
def _begin_cache(cache, at, step, mask, y0):
    """Nothing, and then the first frame."""
    write(cache, at, tl.zeros_like(y0), mask)
    write(cache, at + step, y0, mask)


@triton.jit
def move_cache(cache, at, step, mask, y0, y1, y2, y3, frames: tl.constexpr):
    """What the cache held; it now holds the last two of what it held and the frames."""
    c0, c1 = read(cache, at, mask), read(cache, at + step, mask)
    if frames == 1:
        write(cache, at, c1, mask)
        write(cache, at + step, y0, mask)
    elif frames == 2:
        write(cache, at, y0, mask)
        write(cache, at + step, y1, mask)
    else:
        write(cache, at, y2, mask)
        write(cache, at + step, y3, mask)
    return c0, c1


@triton.jit
def split(in0, in1, in2, in3, in4, in5, at, mask, c0, c1, y0, y1, y2, y3, frames: tl.constexpr):
    """Winograd's input transform: two cached and new frames to slots."""
    if frames == 2:
        write(in0, at, c0 - y0, mask)
        write(in1, at, c1 + y0, mask)
        write(in2, at, y0 - c1, mask)
        write(in3, at, c1 - y1, mask)
    else:
        write(in0, at, c0 * AABB - y0 * AA_PLUS_BB + y2, mask)
        even, odd = y2 - y0 * BB, (y1 - c1 * BB) * A
        write(in1, at, even + odd, mask)
        write(in2, at, even - odd, mask)
        even, odd = y2 - y0 * AA, (y1 - c1 * AA) * B
        write(in3, at, even + odd, mask)
        write(in4, at, even - odd, mask)
        write(in5, at, c1 * AABB - y1 * AA_PLUS_BB + y3, mask)


@triton.jit
def _stack(
    into, pixel, channel, step, mask, c0, c1, y0, y1, y2, y3, frames: tl.constexpr, channels: tl.constexpr
):
    """Each frame behind the two before it, channel after channel."""
    at = pixel.to(tl.int64)[:, None] * (3 * channels) + channel[None, :]
    _write_taps(into, at, channels, mask, c0, c1, y0)
    if frames > 1:
        _write_taps(into, at + 3 * step, channels, mask, c1, y0, y1)
    if frames > 2:
        _write_taps(into, at + 6 * step, channels, mask, y0, y1, y2)
        _write_taps(into, at + 9 * step, channels, mask, y1, y2, y3)


@triton.jit
def _write_taps(into, at, channels: tl.constexpr, mask, oldest, older, newest):
    write(into, at, oldest, mask)
    write(into, at + channels, older, mask)
    write(into, at + 2 * channels, newest, mask)


@triton.jit(do_not_specialize=("height", "width"))
def _combine(
    map0, map1, map2, map3, map4, map5,
    bias, residual, kept, gamma, cache,
    in0, in1, in2, in3, in4, in5,
    height, width, root,
    frames: tl.constexpr, source: tl.constexpr, layout: tl.constexpr,
    has_bias: tl.constexpr, has_residual: tl.constexpr, keep: tl.constexpr,
    activates: tl.constexpr, has_cache: tl.constexpr,
    channels: tl.constexpr, lanes: tl.constexpr, pixels: tl.constexpr,
):  # fmt: skip
    pixel = tl.program_id(0) * pixels + tl.arange(0, pixels)
    channel = tl.arange(0, lanes)
    mask = (pixel < height * width)[:, None] & (channel < channels)[None, :]
    at = pixel.to(tl.int64)[:, None] * channels + channel[None, :]
    step = height.to(tl.int64) * width * channels

    y0, y1, y2, y3 = add_up(
        map0, map1, map2, map3, map4, map5, pixel, channel, at, step, mask,
        height, width, frames, source, channels,
    )  # fmt: skip
    if has_bias:
        b = read(bias, channel, channel < channels)[None, :]
        y0, y1, y2, y3 = y0 + b, y1 + b, y2 + b, y3 + b
    if has_residual:
        r0, r1, r2, r3 = read_frames(residual, at, step, mask, frames)
        y0, y1, y2, y3 = y0 + r0, y1 + r1, y2 + r2, y3 + r3
    if keep:
        write_frames(kept, at, step, mask, y0, y1, y2, y3, frames)

    if activates:
        g = read(gamma, channel, channel < channels)
        y0, y1 = _activate(y0, g, root), _activate(y1, g, root)
        y2, y3 = _activate(y2, g, root), _activate(y3, g, root)
    if layout != TO_NOTHING:
        if layout == TO_FRAMES:
            if has_cache:
                _begin_cache(cache, at, step, mask, y0)
            write_frames(in0, at, step, mask, y0, y1, y2, y3, frames)
        else:
            c0, c1 = move_cache(cache, at, step, mask, y0, y1, y2, y3, frames)
            if layout == TO_SLOTS:
                split(in0, in1, in2, in3, in4, in5, at, mask, c0, c1, y0, y1, y2, y3, frames)
            else:
                _stack(in0, pixel, channel, step, mask, c0, c1, y0, y1, y2, y3, frames, channels)


class Launcher:
    """Launches a kernel by what it was compiled to, past Triton's own look at every argument.

    That look takes the host 70 us a launch, longer than a small kernel runs. All it would find is in `values`
    and the first tensor's dtype; every tensor starts at a multiple of 16 bytes, as torch's own do.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._compiled: dict[tuple[object, ...], Any] = {}

    def __call__(self, programs: int, warps: int, tensors: tuple[Tensor, ...], *values: float) -> None:
        form = (tensors[0].device, tensors[0].dtype, warps, *values)
        compiled = self._compiled.get(form)
        if compiled is None:  # Triton's interpreter compiles nothing and comes here every time
            launch = self._kernel[programs, 1, 1]
            self._compiled[form] = launch(*tensors, *values, num_warps=warps)
        else:
            compiled[programs, 1, 1](*tensors, *values)


_launch_combine = Launcher(_combine)


def combine_on_gpu(
    pending: Pending, activation: Activation | None, *, keep: bool
) -> tuple[Tensor, list[Tensor]]:
    """One launch; see `combine`."""
    frames, height, width, channels = pending.shape
    first = pending.maps[0]
    kept, inputs = _targets(pending, activation, keep=keep)
    lanes = triton.next_power_of_2(channels)
    elements, warps = BLOCKS.get(lanes, OTHER_BLOCK)
    pixels = max(elements // lanes, 1)
    cache = activation.cache if activation is not None else None
    gamma = activation.gamma if activation is not None else None
    optional = (pending.bias, pending.residual, kept, gamma, cache)
    _launch_combine(
        triton.cdiv(height * width, pixels),
        warps,
        (
            *filled_up(pending.maps, first),
            *(first if tensor is None else tensor for tensor in optional),
            *filled_up(inputs, first),
        ),
        height,
        width,
        channels**0.5,
        frames,
        int(pending.source),
        TO_NOTHING.value if activation is None else int(activation.layout),
        pending.bias is not None,
        pending.residual is not None,
        keep,
        gamma is not None,
        cache is not None,
        channels,
        lanes,
        pixels,
    )
    return kept, inputs


def _targets(pending: Pending, activation: Activation | None, *, keep: bool) -> tuple[Tensor, list[Tensor]]:
    """Where a launch writes: over what it reads, where shapes allow. A program keeps to its own pixels."""
    first = pending.maps[0]
    kept = pending.residual if keep else None
    if kept is None:
        kept = first.new_empty(pending.shape if keep else (0,))
    shapes = input_shapes(activation.layout, pending.shape) if activation is not None else []
    if [tuple(one.shape) for one in pending.maps] == shapes:
        return kept, list(pending.maps)
    return kept, [first.new_empty(shape) for shape in shapes]


def filled_up(tensors: Sequence[Tensor], filler: Tensor) -> tuple[Tensor, ...]:
    """As many tensors as a kernel takes; it leaves alone what its form has no use for."""
    return *tensors, *[filler] * (MOST_FRAMES + CACHED_FRAMES - len(tensors))


@triton.jit
def _add_taps(
    maps, bias, carry, sums, size,
    frames: tl.constexpr, channels: tl.constexpr, width: tl.constexpr, pixels: tl.constexpr,
):  # fmt: skip
    pixel = tl.program_id(0) * pixels + tl.arange(0, pixels)
    mask = pixel < size
    at = pixel.to(tl.int64) * width
    frame_step = size.to(tl.int64) * width
    for channel in tl.static_range(channels):
        planes = carry + channel * 2 * size.to(tl.int64)
        out = sums + channel * frames * size.to(tl.int64)
        this, following = read(planes, pixel, mask), read(planes, pixel + size, mask)
        b = tl.load(bias + channel)
        for frame in tl.static_range(frames):
            tap = maps + frame * frame_step + channel
            write(out, pixel + frame * size, this + read(tap, at + 2 * channels, mask) + b, mask)
            this = following + read(tap, at + channels, mask)
            following = read(tap, at, mask)
        write(planes, pixel, this, mask)
        write(planes, pixel + size, following, mask)


def add_taps_on_gpu(maps: Tensor, bias: Tensor, carry: Tensor) -> Tensor:
    """One launch; see `add_taps`."""
    frames, height, width, mapped = maps.shape
    sums = carry.new_empty(len(bias), frames, height, width)
    _add_taps[(triton.cdiv(height * width, PIXELS),)](
        maps, bias, carry, sums, height * width,
        frames=frames, channels=len(bias), width=mapped, pixels=PIXELS,
    )  # fmt: skip
    return sums


@triton.jit
def _soften(scores, out, columns, lanes: tl.constexpr):
    """One row: read once, written once."""
    column = tl.arange(0, lanes)
    mask = column < columns
    at = tl.program_id(0).to(tl.int64) * columns + column
    row = tl.load(scores + at, mask=mask, other=-float("inf"))
    raised = tl.exp(row - tl.max(row, axis=0))
    write(out, at, raised / tl.sum(raised, axis=0), mask)


def soften_on_gpu(scores: Tensor, dtype: torch.dtype) -> Tensor:
    """One launch; see `soften`."""
    columns = scores.shape[-1]
    lanes = triton.next_power_of_2(columns)
    out = torch.empty_like(scores, dtype=dtype)
    warps = min(max(lanes // ROW_PER_WARP, 4), 32)
    _soften[(scores.numel() // columns,)](scores, out, columns, lanes=lanes, num_warps=warps)
    return out
