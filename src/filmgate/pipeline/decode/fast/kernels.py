"""`combine`, `add_taps` and `softmax` in Triton: each input is read once and each output written once.

A program handles a few pixels with all their channels and frames, so the norm over channels, the output
transform and the cache update need no data from other programs. The number of frames is one, two or four.
Helpers return four values; the compiler removes those beyond `frames`. Imported only where a GPU is present.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from filmgate.pipeline.decode.fast.passes import (
    CACHED_FRAMES,
    MAX_FRAMES,
    NORM_EPSILON,
    ConvOutput,
    InputLayout,
    InputSpec,
    OutputLayout,
    input_shapes,
)
from filmgate.pipeline.decode.fast.winograd import FAR, NEAR
from filmgate.pipeline.launch import Launcher, launch

# Elements (pixels times lanes) and warps per program, by lanes: the fastest of those measured. A pair that is
# best for one width can run at half speed for another.
BLOCKS = {128: (512, 2), 256: (512, 2), 512: (1024, 2), 1024: (2048, 4)}
OTHER_BLOCK = (2048, 8)
PIXELS = 256  # per program of `add_taps`
VALUES_PER_WARP = 1024  # of a row of `softmax`

FROM_POINTS = tl.constexpr(int(OutputLayout.POINTS))
FROM_PHASES = tl.constexpr(int(OutputLayout.PHASES))
TO_NOTHING = tl.constexpr(-1)
TO_FRAMES = tl.constexpr(int(InputLayout.FRAMES))
TO_POINTS = tl.constexpr(int(InputLayout.POINTS))
A = tl.constexpr(float(NEAR))
B = tl.constexpr(float(FAR))
AA = tl.constexpr(float(NEAR**2))
BB = tl.constexpr(float(FAR**2))
AAA = tl.constexpr(float(NEAR**3))
BBB = tl.constexpr(float(FAR**3))
AABB = tl.constexpr(float((NEAR * FAR) ** 2))
AA_PLUS_BB = tl.constexpr(float(NEAR**2 + FAR**2))
EPSILON = tl.constexpr(NORM_EPSILON)


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
def output_transform(map0, map1, map2, map3, map4, map5, at, mask, frames: tl.constexpr):
    """Winograd's output transform: one map per point to frames."""
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
def join_phases(pointer, pixel, channel, mask, height, width, frames: tl.constexpr, channels: tl.constexpr):
    """Sub-pixel phases to frames. Phases are shifted by half a pixel: they have one more row and column."""
    row, column = pixel // width, pixel % width
    down, right = row % 2, column % 2
    rows, columns = height // 2 + 1, width // 2 + 1
    place = ((row // 2 + down) * columns + column // 2 + right).to(tl.int64) * 4 + down * 2 + right
    at = place[:, None] * channels + channel[None, :]
    step = rows.to(tl.int64) * columns * 4 * channels
    return read_frames(pointer, at, step, mask, frames)


@triton.jit
def to_frames(
    map0, map1, map2, map3, map4, map5, pixel, channel, at, step, mask,
    height, width, frames: tl.constexpr, output_layout: tl.constexpr, channels: tl.constexpr,
):  # fmt: skip
    """The frames of a convolution's output, before bias and residual."""
    if output_layout == FROM_POINTS:
        y0, y1, y2, y3 = output_transform(map0, map1, map2, map3, map4, map5, at, mask, frames)
    elif output_layout == FROM_PHASES:
        y0, y1, y2, y3 = join_phases(map0, pixel, channel, mask, height, width, frames, channels)
    else:
        y0, y1, y2, y3 = read_frames(map0, at, step, mask, frames)
    return y0, y1, y2, y3


@triton.jit
def _rms_norm_silu(frame, gamma, root):
    norm = tl.sqrt(tl.sum(frame * frame, axis=1))
    scaled = frame * (root / tl.maximum(norm, EPSILON))[:, None] * gamma[None, :]
    return scaled * tl.sigmoid(scaled)


@triton.jit
def _start_cache(cache, at, step, mask, y0):
    """Zeros, followed by the first frame."""
    write(cache, at, tl.zeros_like(y0), mask)
    write(cache, at + step, y0, mask)


@triton.jit
def update_cache(cache, at, step, mask, y0, y1, y2, y3, frames: tl.constexpr):
    """Return the cached frames and replace them by the last two of the cached and new frames."""
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
def input_transform(in0, in1, in2, in3, in4, in5, at, mask, c0, c1, y0, y1, y2, y3, frames: tl.constexpr):
    """Winograd's input transform: two cached frames and the new ones to one map per point."""
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
    """Each frame behind the two frames before it, concatenated along the channels."""
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
    frames: tl.constexpr, output_layout: tl.constexpr, input_layout: tl.constexpr,
    has_bias: tl.constexpr, has_residual: tl.constexpr, keep: tl.constexpr,
    has_norm: tl.constexpr, has_cache: tl.constexpr,
    channels: tl.constexpr, lanes: tl.constexpr, pixels: tl.constexpr,
):  # fmt: skip
    pixel = tl.program_id(0) * pixels + tl.arange(0, pixels)
    channel = tl.arange(0, lanes)
    mask = (pixel < height * width)[:, None] & (channel < channels)[None, :]
    at = pixel.to(tl.int64)[:, None] * channels + channel[None, :]
    step = height.to(tl.int64) * width * channels

    y0, y1, y2, y3 = to_frames(
        map0, map1, map2, map3, map4, map5, pixel, channel, at, step, mask,
        height, width, frames, output_layout, channels,
    )  # fmt: skip
    if has_bias:
        b = read(bias, channel, channel < channels)[None, :]
        y0, y1, y2, y3 = y0 + b, y1 + b, y2 + b, y3 + b
    if has_residual:
        r0, r1, r2, r3 = read_frames(residual, at, step, mask, frames)
        y0, y1, y2, y3 = y0 + r0, y1 + r1, y2 + r2, y3 + r3
    if keep:
        write_frames(kept, at, step, mask, y0, y1, y2, y3, frames)

    if has_norm:
        g = read(gamma, channel, channel < channels)
        y0, y1 = _rms_norm_silu(y0, g, root), _rms_norm_silu(y1, g, root)
        y2, y3 = _rms_norm_silu(y2, g, root), _rms_norm_silu(y3, g, root)
    if input_layout != TO_NOTHING:
        if input_layout == TO_FRAMES:
            if has_cache:
                _start_cache(cache, at, step, mask, y0)
            write_frames(in0, at, step, mask, y0, y1, y2, y3, frames)
        else:
            c0, c1 = update_cache(cache, at, step, mask, y0, y1, y2, y3, frames)
            if input_layout == TO_POINTS:
                input_transform(in0, in1, in2, in3, in4, in5, at, mask, c0, c1, y0, y1, y2, y3, frames)
            else:
                _stack(in0, pixel, channel, step, mask, c0, c1, y0, y1, y2, y3, frames, channels)


_launch_combine = Launcher(_combine)


def combine_on_gpu(output: ConvOutput, spec: InputSpec | None, *, keep: bool) -> tuple[Tensor, list[Tensor]]:
    """One launch; see `combine`."""
    frames, height, width, channels = output.shape
    first = output.maps[0]
    kept, inputs = _targets(output, spec, keep=keep)
    lanes = triton.next_power_of_2(channels)
    elements, warps = BLOCKS.get(lanes, OTHER_BLOCK)
    pixels = max(elements // lanes, 1)
    cache = spec.cache if spec is not None else None
    gamma = spec.gamma if spec is not None else None
    optional = (output.bias, output.residual, kept, gamma, cache)
    _launch_combine(
        triton.cdiv(height * width, pixels),
        warps,
        (
            *padded(output.maps, first),
            *(first if tensor is None else tensor for tensor in optional),
            *padded(inputs, first),
        ),
        height,
        width,
        channels**0.5,
        frames,
        int(output.layout),
        TO_NOTHING.value if spec is None else int(spec.layout),
        output.bias is not None,
        output.residual is not None,
        keep,
        gamma is not None,
        cache is not None,
        channels,
        lanes,
        pixels,
    )
    return kept, inputs


def _targets(output: ConvOutput, spec: InputSpec | None, *, keep: bool) -> tuple[Tensor, list[Tensor]]:
    """The tensors to write, in place where shapes allow: a program reads and writes its own pixels only."""
    first = output.maps[0]
    kept = output.residual if keep else None
    if kept is None:
        kept = first.new_empty(output.shape if keep else (0,))
    shapes = input_shapes(spec.layout, output.shape) if spec is not None else []
    if [tuple(one.shape) for one in output.maps] == shapes:
        return kept, list(output.maps)
    return kept, [first.new_empty(shape) for shape in shapes]


def padded(tensors: Sequence[Tensor], filler: Tensor) -> tuple[Tensor, ...]:
    """Fill up to the number of tensors that a kernel takes. It does not access the extra ones."""
    return *tensors, *[filler] * (MAX_FRAMES + CACHED_FRAMES - len(tensors))


@triton.jit
def _add_taps(
    maps, bias, overlap, sums, size,
    frames: tl.constexpr, channels: tl.constexpr, width: tl.constexpr, pixels: tl.constexpr,
):  # fmt: skip
    pixel = tl.program_id(0) * pixels + tl.arange(0, pixels)
    mask = pixel < size
    at = pixel.to(tl.int64) * width
    frame_step = size.to(tl.int64) * width
    for channel in tl.static_range(channels):
        planes = overlap + channel * 2 * size.to(tl.int64)
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


def add_taps_on_gpu(maps: Tensor, bias: Tensor, overlap: Tensor) -> Tensor:
    """One launch; see `add_taps`."""
    frames, height, width, mapped = maps.shape
    sums = overlap.new_empty(len(bias), frames, height, width)
    launch(
        _add_taps, triton.cdiv(height * width, PIXELS), maps, bias, overlap, sums, height * width,
        frames=frames, channels=len(bias), width=mapped, pixels=PIXELS,
    )  # fmt: skip
    return sums


@triton.jit
def _softmax(scores, out, columns, lanes: tl.constexpr):
    """One row per program, read once and written once."""
    column = tl.arange(0, lanes)
    mask = column < columns
    at = tl.program_id(0).to(tl.int64) * columns + column
    row = tl.load(scores + at, mask=mask, other=-float("inf"))
    raised = tl.exp(row - tl.max(row, axis=0))
    write(out, at, raised / tl.sum(raised, axis=0), mask)


def softmax_on_gpu(scores: Tensor, dtype: torch.dtype) -> Tensor:
    """One launch; see `softmax`."""
    columns = scores.shape[-1]
    lanes = triton.next_power_of_2(columns)
    out = torch.empty_like(scores, dtype=dtype)
    warps = min(max(lanes // VALUES_PER_WARP, 4), 32)
    launch(_softmax, scores.numel() // columns, scores, out, columns, lanes=lanes, num_warps=warps)
    return out
