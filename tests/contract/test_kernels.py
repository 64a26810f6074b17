"""The Triton kernels, by Triton's interpreter (see tests/conftest.py): what they compute, without a GPU."""

import itertools

import pytest
import torch

from filmgate.pipeline.decode.fast.kernels import add_taps_on_gpu, combine_on_gpu, soften_on_gpu
from filmgate.pipeline.decode.fast.passes import (
    Activation,
    Layout,
    Pending,
    Source,
    add_taps_in_torch,
    combine_in_torch,
)
from filmgate.pipeline.transfer import colour_kernel
from filmgate.pipeline.transfer.colour import Yuv420, can_launch
from filmgate.pipeline.transfer.colour_kernel import convert_on_gpu

HEIGHT, WIDTH = 6, 10


def pending_of(source, frames, channels, *, has_bias, has_residual):
    draw = torch.Generator().manual_seed(frames)
    shapes = {
        Source.FRAMES: [(frames, HEIGHT, WIDTH, channels)],
        Source.SLOTS: [(1, HEIGHT, WIDTH, channels)] * (frames + 2),
        Source.PHASES: [(frames, HEIGHT // 2 + 1, WIDTH // 2 + 1, 4 * channels)],
    }[source]
    maps = tuple(torch.randn(shape, generator=draw) for shape in shapes)
    residual = torch.randn(frames, HEIGHT, WIDTH, channels, generator=draw) if has_residual else None
    return Pending(source, maps, torch.randn(channels, generator=draw) if has_bias else None, residual)


FORMS = [
    (source, frames, layout)
    for source, frames in itertools.product(Source, (1, 2, 4))
    if source is not Source.SLOTS or frames > 1
    for layout in (Layout.FRAMES, Layout.STACKED if frames == 1 else Layout.SLOTS)
]


@pytest.mark.parametrize(("source", "frames", "layout"), FORMS)
@pytest.mark.parametrize("is_last", [True, False])
def test_it_does_what_the_reference_does(source, frames, layout, is_last):
    pending = pending_of(source, frames, 12, has_bias=is_last, has_residual=is_last)
    gamma, cache = torch.randn(12), torch.randn(2, HEIGHT, WIDTH, 12)
    caches = [None if is_the_heads(layout, frames) else cache.clone() for _ in range(2)]
    expected = combine_in_torch(pending, Activation(gamma, layout, caches[0]), keep=is_last)
    found = combine_on_gpu(pending, Activation(gamma, layout, caches[1]), keep=is_last)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    if caches[0] is not None:
        torch.testing.assert_close(*caches, rtol=1e-4, atol=1e-5)


def is_the_heads(layout, frames):
    """Frames with a cache are a clip's first; only the head asks for several, and it has none."""
    return layout is Layout.FRAMES and frames > 1


@pytest.mark.parametrize("combine", [combine_in_torch, combine_on_gpu])
def test_the_first_frame_begins_a_cache_whatever_it_held(combine):
    cache = torch.full((2, HEIGHT, WIDTH, 12), float("nan"))
    pending = pending_of(Source.FRAMES, 1, 12, has_bias=False, has_residual=False)
    _, (active,) = combine(pending, Activation(torch.randn(12), Layout.FRAMES, cache), keep=False)
    assert torch.equal(cache, torch.cat([torch.zeros_like(active), active]))


@pytest.mark.parametrize("frames", [1, 2, 4])
def test_it_may_only_add_up(frames):
    pending = pending_of(Source.FRAMES, frames, 16, has_bias=True, has_residual=True)
    expected = combine_in_torch(pending, None, keep=True)
    torch.testing.assert_close(combine_on_gpu(pending, None, keep=True), expected)
    assert expected[1] == []


@pytest.mark.parametrize("frames", [1, 2])
def test_stacking_puts_each_frame_behind_the_two_before_it(frames):
    pending = pending_of(
        Source.SLOTS if frames > 1 else Source.FRAMES, frames, 12, has_bias=True, has_residual=True
    )
    cache = torch.randn(2, HEIGHT, WIDTH, 12)
    there, here = (Activation(None, Layout.STACKED, cache.clone()) for _ in range(2))
    _, (expected,) = combine_in_torch(pending, there, keep=False)
    _, (found,) = combine_on_gpu(pending, here, keep=False)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(here.cache, there.cache, rtol=1e-4, atol=1e-5)
    assert torch.equal(expected[0, ..., :12], cache[0])  # the oldest first, and untouched
    assert torch.equal(expected[0, ..., 12:24], cache[1])


@pytest.mark.parametrize("channels", [3, 12])
def test_taps_are_added_up_over_chunks_of_any_length(channels):
    bias = torch.randn(channels)
    maps = torch.randn(8, HEIGHT, WIDTH, 3 * channels + 1)
    whole = add_taps_in_torch(maps, bias, torch.zeros(channels, 2, HEIGHT, WIDTH))
    oldest, older, newest = maps[..., : 3 * channels].permute(3, 0, 1, 2).chunk(3)
    by_hand = oldest[:, 3] + older[:, 4] + newest[:, 5] + bias[:, None, None]
    torch.testing.assert_close(whole[:, 5], by_hand)
    for add in (add_taps_in_torch, add_taps_on_gpu):
        carry = torch.zeros(channels, 2, HEIGHT, WIDTH)
        parts = [add(part, bias, carry) for part in maps.split([1, 4, 1, 2])]
        torch.testing.assert_close(torch.cat(parts, dim=1), whole)


@pytest.mark.parametrize("columns", [1, 5, 300])
def test_a_softened_row_is_a_softmax(columns):
    scores = torch.randn(2, 3, columns) * 30
    found = soften_on_gpu(scores, torch.float16)
    assert found.dtype is torch.float16
    torch.testing.assert_close(found, scores.softmax(-1).half(), rtol=1e-3, atol=1e-6)


def test_it_writes_over_what_it_has_read_where_that_has_the_same_shape():
    pending = pending_of(Source.SLOTS, 4, 12, has_bias=True, has_residual=True)
    places = [one.data_ptr() for one in (*pending.maps, pending.residual)]
    activation = Activation(torch.randn(12), Layout.SLOTS, torch.randn(2, HEIGHT, WIDTH, 12))
    kept, inputs = combine_on_gpu(pending, activation, keep=True)
    assert [one.data_ptr() for one in (*inputs, kept)] == places


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("convert", [Yuv420.convert_in_torch, convert_on_gpu])
def test_colours_of_what_is_no_number_are_marked(convert, value):
    frames, sound = torch.zeros(3, 2, 4, 6), torch.ones(1, dtype=torch.uint8)
    out = torch.zeros(2, 6, 6, dtype=torch.uint8)
    convert(frames, out, sound)
    assert sound == 1
    frames[1, 1, 3, 5] = value
    convert(frames, out, sound)
    assert sound == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [2, 48, 514])
def test_colour_is_the_references(width, dtype):
    frames = (torch.randn(3, 5, 4, width, generator=torch.Generator().manual_seed(width)) * 0.7).to(dtype)
    there, here = (torch.zeros(3, 6, width, dtype=torch.uint8) for _ in range(2))
    Yuv420.convert_in_torch(frames[:, -3:], there)
    convert_on_gpu(frames[:, -3:], here)  # a view: the ladder cuts chunks so
    assert (there.int() - here.int()).abs().max() <= 1  # a tie may fall either way
    assert (there == here).float().mean() > 0.999


def test_where_the_kernel_cannot_be_built_torch_takes_over_and_it_is_said_once(monkeypatch, caplog):
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
