"""The kernels around a GroupNorm, by Triton's interpreter: what they compute, without a GPU."""

import itertools

import pytest
import torch
from torch.nn.functional import group_norm, interpolate, silu

from filmgate.pipeline.decode.fast import group_kernels
from filmgate.pipeline.decode.fast.group_kernels import condition_on_gpu, gather_on_gpu, settle_on_gpu
from filmgate.pipeline.decode.fast.group_passes import (
    Conditioning,
    GroupNorm,
    Memory,
    condition_in_torch,
    gather_in_torch,
    settle_in_torch,
)
from filmgate.pipeline.decode.fast.passes import Layout, Pending, Source

HEIGHT, WIDTH, CHANNELS, GROUPS = 6, 10, 16, 4
GATHERED = [
    (source, frames, times)
    for source, frames, times in itertools.product(Source, (1, 2, 4), (1, 2))
    if (source is not Source.SLOTS or frames > 1) and frames * times <= 4
]
CONDITIONED = [
    (frames, latents, layout, begins)
    for frames, latents in ((1, 1), (2, 1), (2, 2), (4, 1), (4, 2), (4, 4))
    for layout, begins in ((Layout.FRAMES, True), (Layout.SLOTS, True), (Layout.SLOTS, False))
    if layout is Layout.FRAMES or frames > 1
]


@pytest.fixture(autouse=True)
def small_programs(monkeypatch):
    """Several programs of several rounds, the last one partly beyond the picture."""
    monkeypatch.setattr(group_kernels, "GATHER_BLOCK", (128, 2))
    monkeypatch.setattr(group_kernels, "CONDITION_BLOCKS", {CHANNELS: (128, 4)})
    monkeypatch.setattr(group_kernels, "SUMS", 1)


def draw(*shape):
    return torch.randn(shape)


def pending_of(source, frames, *, is_last):
    shapes = {
        Source.FRAMES: [(frames, HEIGHT, WIDTH, CHANNELS)],
        Source.SLOTS: [(1, HEIGHT, WIDTH, CHANNELS)] * (frames + 2),
        Source.PHASES: [(frames, HEIGHT // 2 + 1, WIDTH // 2 + 1, 4 * CHANNELS)],
    }[source]
    residual = draw(frames, HEIGHT, WIDTH, CHANNELS) if is_last else None
    return Pending(source, tuple(draw(*shape) for shape in shapes), draw(CHANNELS), residual)


def copy_of(pending):
    residual = None if pending.residual is None else pending.residual.clone()
    return Pending(pending.source, tuple(one.clone() for one in pending.maps), pending.bias, residual)


@pytest.mark.parametrize(("source", "frames", "times"), GATHERED)
@pytest.mark.parametrize("is_last", [True, False])
def test_gathering_is_the_references(source, frames, times, is_last):
    pending = pending_of(source, frames, is_last=is_last)
    expected, expected_sums = gather_in_torch(pending, GROUPS, times)
    found, sums = gather_on_gpu(copy_of(pending), GROUPS, times)
    assert sums.shape == (2, GROUPS, 2)  # of 60 pixels, 32 a program
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(sums.sum(-1, keepdim=True), expected_sums, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("gather", [gather_in_torch, gather_on_gpu])
def test_a_frame_shown_twice_counts_twice(gather):
    pending = pending_of(Source.PHASES, 2, is_last=False)
    once, sums = gather(copy_of(pending), GROUPS, 1)
    twice, twice_sums = gather(pending, GROUPS, 2)
    assert torch.equal(twice, once[[0, 0, 1, 1]])
    torch.testing.assert_close(twice_sums, 2 * sums)


def test_frames_are_gathered_over_the_residual_or_over_themselves():
    for source, is_last in ((Source.SLOTS, True), (Source.FRAMES, False)):
        pending = pending_of(source, 2, is_last=is_last)
        place = (pending.residual if is_last else pending.maps[0]).data_ptr()
        assert gather_on_gpu(pending, GROUPS)[0].data_ptr() == place


@pytest.mark.parametrize("mean", [0.0, 10.0])
def test_a_settled_norm_is_a_group_norm_over_all_groups_of_frames(mean):
    frames = draw(5, HEIGHT, WIDTH, CHANNELS) + mean
    norm = GroupNorm(draw(CHANNELS), draw(CHANNELS), GROUPS, 1e-6)
    parts = [
        gather_on_gpu(Pending(Source.FRAMES, (part.clone(),)), GROUPS)[1] for part in frames.split([1, 4])
    ]
    sums = torch.cat(parts, dim=-1)
    count = frames.numel() // GROUPS
    by_kernel, by_torch = settle_on_gpu(sums, norm, count), settle_in_torch(sums, norm, count)
    torch.testing.assert_close(by_kernel, by_torch, rtol=1e-4, atol=1e-4)
    whole = frames.permute(3, 0, 1, 2).unsqueeze(0).double()
    expected = group_norm(whole, GROUPS, norm.gamma.double(), norm.beta.double(), 1e-6)[0].permute(1, 2, 3, 0)
    for scale, shift in (by_kernel.double(), by_torch.double()):
        torch.testing.assert_close(frames * scale + shift, expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("settle", [settle_in_torch, settle_on_gpu])
def test_a_chunk_of_one_value_settles_to_a_number(settle):
    """Rounding may leave the variance of a constant below zero."""
    frames = torch.full((1, HEIGHT, WIDTH, CHANNELS), 0.1)
    _, sums = gather_in_torch(Pending(Source.FRAMES, (frames,)), GROUPS)
    norm = GroupNorm(torch.ones(CHANNELS), torch.zeros(CHANNELS), GROUPS, 1e-6)
    assert settle(sums * 1.0001, norm, frames.numel() // GROUPS).isfinite().all()


def conditioning_of(latents):
    return Conditioning(draw(2, CHANNELS), draw(latents, HEIGHT // 2, WIDTH // 2, 2 * CHANNELS))


@pytest.mark.parametrize(("frames", "latents", "layout", "begins"), CONDITIONED)
def test_conditioning_is_the_references(frames, latents, layout, begins):
    given, conditioning = draw(frames, HEIGHT, WIDTH, CHANNELS), conditioning_of(latents)
    cache = (
        torch.full((2, HEIGHT, WIDTH, CHANNELS), float("nan")) if begins else draw(2, HEIGHT, WIDTH, CHANNELS)
    )
    is_the_heads = layout is Layout.FRAMES and frames > 1
    here, there = (None if is_the_heads else Memory(cache.clone(), begins) for _ in range(2))
    expected = condition_in_torch(given, conditioning, layout, there)
    found = condition_on_gpu(given.clone(), conditioning, layout, here)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert len(found) == (frames + 2 if layout is Layout.SLOTS else 1)
    if here is not None and there is not None:
        torch.testing.assert_close(here.cache, there.cache, rtol=1e-4, atol=1e-5)
        assert here.cache.isfinite().all()


@pytest.mark.parametrize("condition", [condition_in_torch, condition_on_gpu])
def test_what_is_looked_up_is_the_latents_nearest_to_a_pixel(condition):
    given, conditioning = draw(4, HEIGHT, WIDTH, CHANNELS), conditioning_of(2)
    scale, shift = conditioning.settled
    large = interpolate(conditioning.looked_up.permute(3, 0, 1, 2).unsqueeze(0), size=(4, HEIGHT, WIDTH))
    y, b = large[0].permute(1, 2, 3, 0).chunk(2, dim=-1)
    expected = silu((given * scale + shift) * y + b)
    (found,) = condition(given.clone(), conditioning, Layout.FRAMES)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_the_heads_frames_are_written_over_those_given_and_others_are_left_alone():
    given = draw(1, HEIGHT, WIDTH, CHANNELS)
    kept = given.clone()
    memory = Memory(draw(2, HEIGHT, WIDTH, CHANNELS), begins=True)
    condition_on_gpu(given, conditioning_of(1), Layout.FRAMES, memory)
    assert torch.equal(given, kept)  # still a residual
    (active,) = condition_on_gpu(given, conditioning_of(1), Layout.FRAMES)
    assert active.data_ptr() == given.data_ptr()
