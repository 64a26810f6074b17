"""`gather`, `settle` and `condition` in Triton: one read of what was written, one write of what is next read.

A program takes some pixels with all their channels and all frames of a group. Channels and their groups are
powers of two. Nothing is compiled for one size of picture: a new size is as quick as the last. Imported on a
GPU alone.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from filmgate.pipeline.decode.fast.group_passes import Conditioning, GroupNorm, Memory
from filmgate.pipeline.decode.fast.kernels import (
    TO_SLOTS,
    Launcher,
    add_up,
    filled_up,
    move_cache,
    read,
    read_frames,
    split,
    write,
    write_frames,
)
from filmgate.pipeline.decode.fast.passes import MOST_FRAMES, Layout, Pending, input_shapes

# A program's elements (pixels times channels) and its warps; those of `condition` by channels.
GATHER_BLOCK = (1024, 2)
CONDITION_BLOCKS = {128: (2048, 8)}
OTHER_CONDITION_BLOCK = (2048, 4)
ROUNDS = 4  # of pixels that a program of `gather` takes one after the other: fewer partial sums
SUMS = 4096  # partial sums that `settle` reads at a time
SETTLE_WARPS = 8


@triton.jit
def _add_to(total, squares, y0, y1, y2, y3, frames: tl.constexpr):
    """Sums of the frames, pixel by pixel and channel by channel."""
    total += y0
    squares += y0 * y0
    if frames > 1:
        total += y1
        squares += y1 * y1
    if frames > 2:
        total += y2 + y3
        squares += y2 * y2 + y3 * y3
    return total, squares


@triton.jit
def _by_group(values, groups: tl.constexpr, channels: tl.constexpr):
    by_channel = tl.sum(values, axis=0)
    return tl.sum(tl.reshape(by_channel, (groups, channels // groups)), axis=1)


@triton.jit(do_not_specialize=("height", "width"))
def _gather(
    map0, map1, map2, map3, map4, map5,
    bias, residual, kept, sums,
    height, width,
    frames: tl.constexpr, times: tl.constexpr, source: tl.constexpr,
    has_bias: tl.constexpr, has_residual: tl.constexpr,
    channels: tl.constexpr, groups: tl.constexpr, pixels: tl.constexpr, rounds: tl.constexpr,
):  # fmt: skip
    channel = tl.arange(0, channels)
    step = height.to(tl.int64) * width * channels
    total = tl.zeros((pixels, channels), tl.float32)
    squares = tl.zeros((pixels, channels), tl.float32)
    for n in range(rounds):
        pixel = (tl.program_id(0) * rounds + n) * pixels + tl.arange(0, pixels)
        mask = (pixel < height * width)[:, None] & (channel < channels)[None, :]
        at = pixel.to(tl.int64)[:, None] * channels + channel[None, :]
        y0, y1, y2, y3 = add_up(
            map0, map1, map2, map3, map4, map5, pixel, channel, at, step, mask,
            height, width, frames, source, channels,
        )  # fmt: skip
        if has_bias:  # beyond the last pixel nothing may be added to the sums
            b = tl.where(mask, tl.load(bias + channel)[None, :], 0.0)
            y0, y1, y2, y3 = y0 + b, y1 + b, y2 + b, y3 + b
        if has_residual:
            r0, r1, r2, r3 = read_frames(residual, at, step, mask, frames)
            y0, y1, y2, y3 = y0 + r0, y1 + r1, y2 + r2, y3 + r3
        if times == 2:
            write_frames(kept, at, step, mask, y0, y0, y1, y1, frames * 2)
        else:
            write_frames(kept, at, step, mask, y0, y1, y2, y3, frames)
        total, squares = _add_to(total, squares, y0, y1, y2, y3, frames)
    programs = tl.num_programs(0)
    at_sum = tl.arange(0, groups) * programs + tl.program_id(0)
    tl.store(sums + at_sum, _by_group(total, groups, channels) * times)
    tl.store(sums + groups * programs + at_sum, _by_group(squares, groups, channels) * times)


_launch_gather = Launcher(_gather)


def gather_on_gpu(pending: Pending, groups: int, times: int = 1) -> tuple[Tensor, Tensor]:
    """One launch; see `gather`. A program keeps to its own pixels, so it may write over what it reads."""
    frames, height, width, channels = pending.shape
    assert frames * times <= MOST_FRAMES
    first = pending.maps[0]
    kept = pending.residual if pending.residual is not None else first
    if times > 1 or kept.shape != pending.shape:
        kept = first.new_empty(frames * times, height, width, channels)
    elements, warps = GATHER_BLOCK
    pixels = max(elements // channels, 1)
    programs = triton.cdiv(height * width, pixels * ROUNDS)
    sums = first.new_empty(2, groups, programs, dtype=torch.float32)
    optional = (pending.bias, pending.residual)
    _launch_gather(
        programs,
        warps,
        (
            *filled_up(pending.maps, first),
            *(first if tensor is None else tensor for tensor in optional),
            kept,
            sums,
        ),
        height,
        width,
        frames,
        times,
        int(pending.source),
        pending.bias is not None,
        pending.residual is not None,
        channels,
        groups,
        pixels,
        ROUNDS,
    )
    return kept, sums


@triton.jit(do_not_specialize=("programs", "count", "epsilon"))
def _settle(
    sums, gamma, beta, settled, programs, count, epsilon,
    groups: tl.constexpr, channels: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """One group of channels. Double precision: a mean far from zero leaves little of the squares."""
    group = tl.program_id(0)
    total = tl.zeros((block,), tl.float64)
    squares = tl.zeros((block,), tl.float64)
    for start in range(0, programs, block):
        at = start + tl.arange(0, block)
        mask = at < programs
        total += tl.load(sums + group * programs + at, mask=mask, other=0.0)
        squares += tl.load(sums + (groups + group) * programs + at, mask=mask, other=0.0)
    mean = tl.sum(total, axis=0) / count
    variance = tl.maximum(tl.sum(squares, axis=0) / count - mean * mean, 0.0)
    each: tl.constexpr = channels // groups
    channel = group * each + tl.arange(0, each)
    scale = tl.load(gamma + channel) / tl.sqrt(variance + epsilon)
    write(settled, channel, scale, channel < channels)
    write(settled + channels, channel, tl.load(beta + channel) - mean * scale, channel < channels)


_launch_settle = Launcher(_settle)


def settle_on_gpu(sums: Tensor, norm: GroupNorm, count: int) -> Tensor:
    """One launch; see `settle`."""
    channels = len(norm.gamma)
    settled = sums.new_empty(2, channels)
    tensors = (sums, norm.gamma, norm.beta, settled)
    values = (sums.shape[-1], count, norm.epsilon, norm.groups, channels, SUMS)
    _launch_settle(norm.groups, SETTLE_WARPS, tensors, *values)
    return settled


@triton.jit
def _look_up(looked_up, at, step, mask, channels: tl.constexpr):
    return read(looked_up, at + step, mask), read(looked_up, at + step + channels, mask)


@triton.jit
def _activate(frame, scale, shift, y, b):
    conditioned = (frame * scale + shift) * y + b
    return conditioned * tl.sigmoid(conditioned)


@triton.jit(do_not_specialize=("height", "width", "zoom"))
def _condition(
    given, settled, looked_up, cache,
    in0, in1, in2, in3, in4, in5,
    height, width, zoom,
    frames: tl.constexpr, latents: tl.constexpr, layout: tl.constexpr,
    has_cache: tl.constexpr, begins: tl.constexpr,
    channels: tl.constexpr, pixels: tl.constexpr,
):  # fmt: skip
    pixel = tl.program_id(0) * pixels + tl.arange(0, pixels)
    channel = tl.arange(0, channels)
    mask = (pixel < height * width)[:, None] & (channel < channels)[None, :]
    at = pixel.to(tl.int64)[:, None] * channels + channel[None, :]
    step = height.to(tl.int64) * width * channels
    columns = width // zoom
    place = (pixel // width // zoom) * columns + pixel % width // zoom
    look = place.to(tl.int64)[:, None] * (2 * channels) + channel[None, :]
    look_step = (height // zoom).to(tl.int64) * columns * (2 * channels)

    y0, y1, y2, y3 = read_frames(given, at, step, mask, frames)
    scale = tl.load(settled + channel)[None, :]
    shift = tl.load(settled + channels + channel)[None, :]
    y, b = _look_up(looked_up, look, 0, mask, channels)
    y0 = _activate(y0, scale, shift, y, b)
    if frames > 1:
        if latents == frames:
            y, b = _look_up(looked_up, look, look_step, mask, channels)
        y1 = _activate(y1, scale, shift, y, b)
    if frames > 2:
        if latents > 1:
            y, b = _look_up(looked_up, look, latents // 2 * look_step, mask, channels)
        y2 = _activate(y2, scale, shift, y, b)
        if latents == frames:
            y, b = _look_up(looked_up, look, 3 * look_step, mask, channels)
        y3 = _activate(y3, scale, shift, y, b)

    if layout == TO_SLOTS:
        c0, c1 = move_cache(cache, at, step, mask, y0, y1, y2, y3, frames)
        if begins:
            c0, c1 = y0, y0
        split(in0, in1, in2, in3, in4, in5, at, mask, c0, c1, y0, y1, y2, y3, frames)
    else:
        if has_cache:
            write(cache, at, y0, mask)
            write(cache, at + step, y0, mask)
        write_frames(in0, at, step, mask, y0, y1, y2, y3, frames)


_launch_condition = Launcher(_condition)


def condition_on_gpu(
    frames: Tensor, conditioning: Conditioning, layout: Layout, memory: Memory | None = None
) -> list[Tensor]:
    """One launch; see `condition`."""
    count, height, width, channels = frames.shape
    latents, small_height, _, _ = conditioning.looked_up.shape
    inputs = [frames]
    if memory is not None:
        shape = (count, height, width, channels)
        inputs = [frames.new_empty(shape) for shape in input_shapes(layout, shape)]
    elements, warps = CONDITION_BLOCKS.get(channels, OTHER_CONDITION_BLOCK)
    pixels = max(elements // channels, 1)
    _launch_condition(
        triton.cdiv(height * width, pixels),
        warps,
        (
            frames,
            conditioning.settled,
            conditioning.looked_up,
            frames if memory is None else memory.cache,
            *filled_up(inputs, frames),
        ),
        height,
        width,
        height // small_height,
        count,
        latents,
        int(layout),
        memory is not None,
        memory is not None and memory.begins,
        channels,
        pixels,
    )
    return inputs
