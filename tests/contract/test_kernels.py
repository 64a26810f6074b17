"""The Triton kernels match the torch references, in Triton's interpreter (see tests/conftest.py)."""

import itertools

import numpy as np
import pytest
import torch

from filmgate.pipeline.decode.fast.kernels import add_taps_on_gpu, combine_on_gpu, softmax_on_gpu
from filmgate.pipeline.decode.fast.passes import (
    ConvOutput,
    InputLayout,
    InputSpec,
    OutputLayout,
    add_taps_in_torch,
    combine_in_torch,
)
from filmgate.pipeline.transfer import colour_kernel
from filmgate.pipeline.transfer.colour import Yuv420, can_launch
from filmgate.pipeline.transfer.colour_kernel import convert_on_gpu

HEIGHT, WIDTH = 6, 10


def output_of(layout, frames, channels, *, has_bias, has_residual):
    draw = torch.Generator().manual_seed(frames)
    shapes = {
        OutputLayout.FRAMES: [(frames, HEIGHT, WIDTH, channels)],
        OutputLayout.POINTS: [(1, HEIGHT, WIDTH, channels)] * (frames + 2),
        OutputLayout.PHASES: [(frames, HEIGHT // 2 + 1, WIDTH // 2 + 1, 4 * channels)],
    }[layout]
    maps = tuple(torch.randn(shape, generator=draw) for shape in shapes)
    residual = torch.randn(frames, HEIGHT, WIDTH, channels, generator=draw) if has_residual else None
    return ConvOutput(layout, maps, torch.randn(channels, generator=draw) if has_bias else None, residual)


COMBINE_CASES = [
    (output_layout, frames, layout)
    for output_layout, frames in itertools.product(OutputLayout, (1, 2, 4))
    if output_layout is not OutputLayout.POINTS or frames > 1
    for layout in (InputLayout.FRAMES, InputLayout.STACKED if frames == 1 else InputLayout.POINTS)
]


@pytest.mark.parametrize(("output_layout", "frames", "layout"), COMBINE_CASES)
@pytest.mark.parametrize("is_last", [True, False])
def test_combine_matches_the_reference(output_layout, frames, layout, is_last):
    output = output_of(output_layout, frames, 12, has_bias=is_last, has_residual=is_last)
    gamma, cache = torch.randn(12), torch.randn(2, HEIGHT, WIDTH, 12)
    caches = [None if is_the_heads(layout, frames) else cache.clone() for _ in range(2)]
    expected = combine_in_torch(output, InputSpec(gamma, layout, caches[0]), keep=is_last)
    found = combine_on_gpu(output, InputSpec(gamma, layout, caches[1]), keep=is_last)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    if caches[0] is not None:
        torch.testing.assert_close(*caches, rtol=1e-4, atol=1e-5)


def is_the_heads(layout, frames):
    """Only the head reads several frames in this layout, and it has no cache of inputs."""
    return layout is InputLayout.FRAMES and frames > 1


@pytest.mark.parametrize("combine", [combine_in_torch, combine_on_gpu])
def test_the_first_frame_starts_a_new_cache(combine):
    cache = torch.full((2, HEIGHT, WIDTH, 12), float("nan"))
    output = output_of(OutputLayout.FRAMES, 1, 12, has_bias=False, has_residual=False)
    _, (active,) = combine(output, InputSpec(torch.randn(12), InputLayout.FRAMES, cache), keep=False)
    assert torch.equal(cache, torch.cat([torch.zeros_like(active), active]))


@pytest.mark.parametrize("frames", [1, 2, 4])
def test_combine_without_a_next_convolution_returns_frames(frames):
    output = output_of(OutputLayout.FRAMES, frames, 16, has_bias=True, has_residual=True)
    expected = combine_in_torch(output, None, keep=True)
    torch.testing.assert_close(combine_on_gpu(output, None, keep=True), expected)
    assert expected[1] == []


@pytest.mark.parametrize("frames", [1, 2])
def test_each_stacked_frame_follows_the_two_before_it(frames):
    output = output_of(
        OutputLayout.POINTS if frames > 1 else OutputLayout.FRAMES,
        frames,
        12,
        has_bias=True,
        has_residual=True,
    )
    cache = torch.randn(2, HEIGHT, WIDTH, 12)
    expected_spec, found_spec = (InputSpec(None, InputLayout.STACKED, cache.clone()) for _ in range(2))
    _, (expected,) = combine_in_torch(output, expected_spec, keep=False)
    _, (found,) = combine_on_gpu(output, found_spec, keep=False)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found_spec.cache, expected_spec.cache, rtol=1e-4, atol=1e-5)
    assert torch.equal(expected[0, ..., :12], cache[0])  # the oldest first, unchanged
    assert torch.equal(expected[0, ..., 12:24], cache[1])


@pytest.mark.parametrize("channels", [3, 12])
def test_taps_are_summed_over_chunks_of_any_length(channels):
    bias = torch.randn(channels)
    maps = torch.randn(8, HEIGHT, WIDTH, 3 * channels + 1)
    whole = add_taps_in_torch(maps, bias, torch.zeros(channels, 2, HEIGHT, WIDTH))
    oldest, older, newest = maps[..., : 3 * channels].permute(3, 0, 1, 2).chunk(3)
    by_hand = oldest[:, 3] + older[:, 4] + newest[:, 5] + bias[:, None, None]
    torch.testing.assert_close(whole[:, 5], by_hand)
    for add in (add_taps_in_torch, add_taps_on_gpu):
        overlap = torch.zeros(channels, 2, HEIGHT, WIDTH)
        parts = [add(part, bias, overlap) for part in maps.split([1, 4, 1, 2])]
        torch.testing.assert_close(torch.cat(parts, dim=1), whole)


@pytest.mark.parametrize("columns", [1, 5, 300])
def test_softmax_matches_torch(columns):
    scores = torch.randn(2, 3, columns) * 30
    found = softmax_on_gpu(scores, torch.float16)
    assert found.dtype is torch.float16
    torch.testing.assert_close(found, scores.softmax(-1).half(), rtol=1e-3, atol=1e-6)


def test_combine_writes_in_place_where_shapes_allow():
    output = output_of(OutputLayout.POINTS, 4, 12, has_bias=True, has_residual=True)
    addresses = [one.data_ptr() for one in (*output.maps, output.residual)]
    spec = InputSpec(torch.randn(12), InputLayout.POINTS, torch.randn(2, HEIGHT, WIDTH, 12))
    kept, inputs = combine_on_gpu(output, spec, keep=True)
    assert [one.data_ptr() for one in (*inputs, kept)] == addresses


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("convert", [Yuv420.convert_in_torch, convert_on_gpu])
def test_non_finite_frames_clear_the_flag(convert, value):
    frames, sound = torch.zeros(3, 2, 4, 6), torch.ones(1, dtype=torch.uint8)
    out = torch.zeros(2, 6, 6, dtype=torch.uint8)
    convert(frames, out, sound)
    assert sound == 1
    frames[1, 1, 3, 5] = value
    # A GPU makes a byte of NaN without a word. Triton's interpreter leaves that to numpy, which warns.
    with np.errstate(invalid="ignore"):
        convert(frames, out, sound)
    assert sound == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [2, 48, 514])
def test_colour_conversion_matches_the_reference(width, dtype):
    frames = (torch.randn(3, 5, 4, width, generator=torch.Generator().manual_seed(width)) * 0.7).to(dtype)
    there, here = (torch.zeros(3, 6, width, dtype=torch.uint8) for _ in range(2))
    Yuv420.convert_in_torch(frames[:, -3:], there)
    convert_on_gpu(frames[:, -3:], here)  # a view, as the memory ladder yields
    assert (there.int() - here.int()).abs().max() <= 1  # rounding of ties may differ
    assert (there == here).float().mean() > 0.999


def test_torch_converts_colours_and_logs_once_if_the_kernel_cannot_be_built(monkeypatch, caplog):
    def fails(*_):
        raise RuntimeError("Failed to find C compiler")

    can_launch.cache_clear()
    assert can_launch(torch.device("cpu"))  # by the interpreter
    can_launch.cache_clear()
    monkeypatch.setattr(colour_kernel, "convert_on_gpu", fails)
    assert not can_launch(torch.device("cpu"))
    assert not can_launch(torch.device("cpu"))
    assert caplog.text.count("could not build the colour kernel") == 1
    assert "C compiler" not in caplog.text
    can_launch.cache_clear()
