"""The Triton kernel, run by Triton's interpreter (see tests/conftest.py): what it computes, without a GPU."""

import itertools

import pytest
import torch

from filmgate.pipeline.decode.fast.kernels import combine_on_gpu
from filmgate.pipeline.decode.fast.passes import Activation, Layout, Pending, Source, combine_in_torch

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
    there, here = (Activation(gamma, layout, cache.clone()) for _ in range(2))
    expected = combine_in_torch(pending, there, keep=is_last)
    found = combine_on_gpu(pending, here, keep=is_last)
    for a, b in [*zip(expected, found, strict=True), (there.cache, here.cache)]:
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("frames", [1, 2, 4])
def test_it_may_only_add_up(frames):
    pending = pending_of(Source.FRAMES, frames, 16, has_bias=True, has_residual=True)
    for a, b in zip(
        combine_in_torch(pending, None, keep=True), combine_on_gpu(pending, None, keep=True), strict=True
    ):
        torch.testing.assert_close(a, b)


def test_the_head_asks_for_frames_without_a_cache():
    pending = pending_of(Source.SLOTS, 4, 16, has_bias=True, has_residual=True)
    activation = Activation(torch.randn(16), Layout.FRAMES)
    for a, b in zip(
        combine_in_torch(pending, activation, keep=False),
        combine_on_gpu(pending, activation, keep=False),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
