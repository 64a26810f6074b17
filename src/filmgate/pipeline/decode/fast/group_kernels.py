"""The functions of group_passes.py in Triton: each input is read once and each output written once.

A program handles some pixels with all their channels and all frames of a group. Channels and norm groups are
powers of two. Nothing is compiled for a picture size. Imported only where a GPU is present.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from filmgate.pipeline.decode.fast.group_passes import CausalCache, GroupNorm, Modulation
from filmgate.pipeline.decode.fast.kernels import (
    TO_POINTS,
    input_transform,
    padded,
    read,
    read_frames,
    to_frames,
    update_cache,
    write,
    write_frames,
)
from filmgate.pipeline.decode.fast.passes import MAX_FRAMES, ConvOutput, InputLayout, input_shapes
from filmgate.pipeline.launch import Launcher

# Elements (pixels times channels) and warps per program: the fastest of those measured. Those of `normalise`
# depend on the number of channels.
TO_FRAMES_BLOCK = (1024, 2)
NORMALISE_BLOCKS = {128: (2048, 8)}
OTHER_NORMALISE_BLOCK = (2048, 4)
ROUNDS = 4  # blocks of pixels per program of `to_frames_and_sums`: more of them leave fewer partial sums
SUMS_PER_ROUND = 4096  # partial sums that `scale_and_shift` reads at a time
SCALE_AND_SHIFT_WARPS = 8


@triton.jit
def _add_to(total, squares, y0, y1, y2, y3, frames: tl.constexpr):
    """Add the frames to the sums of each pixel and channel."""
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
def _to_frames_and_sums(
    map0, map1, map2, map3, map4, map5,
    bias, residual, kept, sums,
    height, width,
    frames: tl.constexpr, repeats: tl.constexpr, output_layout: tl.constexpr,
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
        y0, y1, y2, y3 = to_frames(
            map0, map1, map2, map3, map4, map5, pixel, channel, at, step, mask,
            height, width, frames, output_layout, channels,
        )  # fmt: skip
        if has_bias:  # lanes beyond the last pixel must add nothing to the sums
            b = tl.where(mask, tl.load(bias + channel)[None, :], 0.0)
            y0, y1, y2, y3 = y0 + b, y1 + b, y2 + b, y3 + b
        if has_residual:
            r0, r1, r2, r3 = read_frames(residual, at, step, mask, frames)
            y0, y1, y2, y3 = y0 + r0, y1 + r1, y2 + r2, y3 + r3
        if repeats == 2:
            write_frames(kept, at, step, mask, y0, y0, y1, y1, frames * 2)
        else:
            write_frames(kept, at, step, mask, y0, y1, y2, y3, frames)
        total, squares = _add_to(total, squares, y0, y1, y2, y3, frames)
    programs = tl.num_programs(0)
    at_sum = tl.arange(0, groups) * programs + tl.program_id(0)
    tl.store(sums + at_sum, _by_group(total, groups, channels) * repeats)
    tl.store(sums + groups * programs + at_sum, _by_group(squares, groups, channels) * repeats)


_launch_to_frames_and_sums = Launcher(_to_frames_and_sums)


def to_frames_and_sums_on_gpu(output: ConvOutput, groups: int, repeats: int = 1) -> tuple[Tensor, Tensor]:
    """One launch; see `to_frames_and_sums`. A program reads and writes its own pixels only, so in place."""
    frames, height, width, channels = output.shape
    assert frames * repeats <= MAX_FRAMES
    first = output.maps[0]
    kept = output.residual if output.residual is not None else first
    if repeats > 1 or kept.shape != output.shape:
        kept = first.new_empty(frames * repeats, height, width, channels)
    elements, warps = TO_FRAMES_BLOCK
    pixels = max(elements // channels, 1)
    programs = triton.cdiv(height * width, pixels * ROUNDS)
    sums = first.new_empty(2, groups, programs, dtype=torch.float32)
    optional = (output.bias, output.residual)
    _launch_to_frames_and_sums(
        programs,
        warps,
        (
            *padded(output.maps, first),
            *(first if tensor is None else tensor for tensor in optional),
            kept,
            sums,
        ),
        height,
        width,
        frames,
        repeats,
        int(output.layout),
        output.bias is not None,
        output.residual is not None,
        channels,
        groups,
        pixels,
        ROUNDS,
    )
    return kept, sums


@triton.jit(do_not_specialize=("programs", "count", "epsilon"))
def _scale_and_shift(
    sums, gamma, beta, scale_and_shift, programs, count, epsilon,
    groups: tl.constexpr, channels: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """One group of channels. Double precision: the variance is a small difference of large sums."""
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
    write(scale_and_shift, channel, scale, channel < channels)
    write(scale_and_shift + channels, channel, tl.load(beta + channel) - mean * scale, channel < channels)


_launch_scale_and_shift = Launcher(_scale_and_shift)


def scale_and_shift_on_gpu(sums: Tensor, norm: GroupNorm, count: int) -> Tensor:
    """One launch; see `scale_and_shift`."""
    channels = len(norm.gamma)
    scale_and_shift = sums.new_empty(2, channels)
    tensors = (sums, norm.gamma, norm.beta, scale_and_shift)
    values = (sums.shape[-1], count, norm.epsilon, norm.groups, channels, SUMS_PER_ROUND)
    _launch_scale_and_shift(norm.groups, SCALE_AND_SHIFT_WARPS, tensors, *values)
    return scale_and_shift


@triton.jit
def _read_y_and_b(y_and_b, at, step, mask, channels: tl.constexpr):
    return read(y_and_b, at + step, mask), read(y_and_b, at + step + channels, mask)


@triton.jit
def _modulate(frame, scale, shift, y, b):
    modulated = (frame * scale + shift) * y + b
    return modulated * tl.sigmoid(modulated)


@triton.jit(do_not_specialize=("height", "width", "zoom"))
def _normalise(
    frames_in, scale_and_shift, y_and_b, cache,
    in0, in1, in2, in3, in4, in5,
    height, width, zoom,
    frames: tl.constexpr, latents: tl.constexpr, layout: tl.constexpr,
    has_cache: tl.constexpr, is_start: tl.constexpr,
    channels: tl.constexpr, pixels: tl.constexpr,
):  # fmt: skip
    pixel = tl.program_id(0) * pixels + tl.arange(0, pixels)
    channel = tl.arange(0, channels)
    mask = (pixel < height * width)[:, None] & (channel < channels)[None, :]
    at = pixel.to(tl.int64)[:, None] * channels + channel[None, :]
    step = height.to(tl.int64) * width * channels
    columns = width // zoom
    latent_pixel = (pixel // width // zoom) * columns + pixel % width // zoom
    latent_at = latent_pixel.to(tl.int64)[:, None] * (2 * channels) + channel[None, :]
    latent_step = (height // zoom).to(tl.int64) * columns * (2 * channels)

    y0, y1, y2, y3 = read_frames(frames_in, at, step, mask, frames)
    scale = tl.load(scale_and_shift + channel)[None, :]
    shift = tl.load(scale_and_shift + channels + channel)[None, :]
    y, b = _read_y_and_b(y_and_b, latent_at, 0, mask, channels)
    y0 = _modulate(y0, scale, shift, y, b)
    if frames > 1:
        if latents == frames:
            y, b = _read_y_and_b(y_and_b, latent_at, latent_step, mask, channels)
        y1 = _modulate(y1, scale, shift, y, b)
    if frames > 2:
        if latents > 1:
            y, b = _read_y_and_b(y_and_b, latent_at, latents // 2 * latent_step, mask, channels)
        y2 = _modulate(y2, scale, shift, y, b)
        if latents == frames:
            y, b = _read_y_and_b(y_and_b, latent_at, 3 * latent_step, mask, channels)
        y3 = _modulate(y3, scale, shift, y, b)

    if layout == TO_POINTS:
        c0, c1 = update_cache(cache, at, step, mask, y0, y1, y2, y3, frames)
        if is_start:
            c0, c1 = y0, y0
        input_transform(in0, in1, in2, in3, in4, in5, at, mask, c0, c1, y0, y1, y2, y3, frames)
    else:
        if has_cache:
            write(cache, at, y0, mask)
            write(cache, at + step, y0, mask)
        write_frames(in0, at, step, mask, y0, y1, y2, y3, frames)


_launch_normalise = Launcher(_normalise)


def normalise_on_gpu(
    frames: Tensor, modulation: Modulation, layout: InputLayout, cache: CausalCache | None = None
) -> list[Tensor]:
    """One launch; see `normalise`."""
    count, height, width, channels = frames.shape
    latents, small_height, _, _ = modulation.y_and_b.shape
    inputs = [frames]
    if cache is not None:
        shape = (count, height, width, channels)
        inputs = [frames.new_empty(shape) for shape in input_shapes(layout, shape)]
    elements, warps = NORMALISE_BLOCKS.get(channels, OTHER_NORMALISE_BLOCK)
    pixels = max(elements // channels, 1)
    _launch_normalise(
        triton.cdiv(height * width, pixels),
        warps,
        (
            frames,
            modulation.scale_and_shift,
            modulation.y_and_b,
            frames if cache is None else cache.frames,
            *padded(inputs, frames),
        ),
        height,
        width,
        height // small_height,
        count,
        latents,
        int(layout),
        cache is not None,
        cache is not None and cache.is_start,
        channels,
        pixels,
    )
    return inputs
