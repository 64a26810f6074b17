"""The kernels around a GroupNorm match the torch references, in Triton's interpreter."""

import itertools

import pytest
import torch
from torch.nn.functional import group_norm, interpolate, silu

from filmgate.pipeline.decode.fast import group_kernels
from filmgate.pipeline.decode.fast.group_kernels import (
    normalise_on_gpu,
    scale_and_shift_on_gpu,
    to_frames_and_sums_on_gpu,
)
from filmgate.pipeline.decode.fast.group_passes import (
    CausalCache,
    GroupNorm,
    Modulation,
    normalise_in_torch,
    scale_and_shift_in_torch,
    to_frames_and_sums_in_torch,
)
from filmgate.pipeline.decode.fast.passes import ConvOutput, InputLayout, OutputLayout

HEIGHT, WIDTH, CHANNELS, GROUPS = 6, 10, 16, 4
FRAME_CASES = [
    (layout, frames, repeats)
    for layout, frames, repeats in itertools.product(OutputLayout, (1, 2, 4), (1, 2))
    if (layout is not OutputLayout.POINTS or frames > 1) and frames * repeats <= 4
]
NORMALISE_CASES = [
    (frames, latents, layout, is_start)
    for frames, latents in ((1, 1), (2, 1), (2, 2), (4, 1), (4, 2), (4, 4))
    for layout, is_start in (
        (InputLayout.FRAMES, True),
        (InputLayout.POINTS, True),
        (InputLayout.POINTS, False),
    )
    if layout is InputLayout.FRAMES or frames > 1
]


@pytest.fixture(autouse=True)
def small_programs(monkeypatch):
    """Use several programs with several rounds each; the last one extends beyond the picture."""
    monkeypatch.setattr(group_kernels, "TO_FRAMES_BLOCK", (128, 2))
    monkeypatch.setattr(group_kernels, "NORMALISE_BLOCKS", {CHANNELS: (128, 4)})
    monkeypatch.setattr(group_kernels, "SUMS_PER_ROUND", 1)


def draw(*shape):
    return torch.randn(shape)


def output_of(layout, frames, *, is_last):
    shapes = {
        OutputLayout.FRAMES: [(frames, HEIGHT, WIDTH, CHANNELS)],
        OutputLayout.POINTS: [(1, HEIGHT, WIDTH, CHANNELS)] * (frames + 2),
        OutputLayout.PHASES: [(frames, HEIGHT // 2 + 1, WIDTH // 2 + 1, 4 * CHANNELS)],
    }[layout]
    residual = draw(frames, HEIGHT, WIDTH, CHANNELS) if is_last else None
    return ConvOutput(layout, tuple(draw(*shape) for shape in shapes), draw(CHANNELS), residual)


def copy_of(output):
    residual = None if output.residual is None else output.residual.clone()
    return ConvOutput(output.layout, tuple(one.clone() for one in output.maps), output.bias, residual)


@pytest.mark.parametrize(("layout", "frames", "repeats"), FRAME_CASES)
@pytest.mark.parametrize("is_last", [True, False])
def test_frames_and_sums_match_the_reference(layout, frames, repeats, is_last):
    output = output_of(layout, frames, is_last=is_last)
    expected, expected_sums = to_frames_and_sums_in_torch(output, GROUPS, repeats)
    found, sums = to_frames_and_sums_on_gpu(copy_of(output), GROUPS, repeats)
    assert sums.shape == (2, GROUPS, 2)  # 60 pixels, 32 per program
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(sums.sum(-1, keepdim=True), expected_sums, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("to_frames_and_sums", [to_frames_and_sums_in_torch, to_frames_and_sums_on_gpu])
def test_a_repeated_frame_is_counted_twice(to_frames_and_sums):
    output = output_of(OutputLayout.PHASES, 2, is_last=False)
    once, sums = to_frames_and_sums(copy_of(output), GROUPS, 1)
    twice, twice_sums = to_frames_and_sums(output, GROUPS, 2)
    assert torch.equal(twice, once[[0, 0, 1, 1]])
    torch.testing.assert_close(twice_sums, 2 * sums)


def test_frames_overwrite_the_residual_or_the_maps():
    for layout, is_last in ((OutputLayout.POINTS, True), (OutputLayout.FRAMES, False)):
        output = output_of(layout, 2, is_last=is_last)
        address = (output.residual if is_last else output.maps[0]).data_ptr()
        assert to_frames_and_sums_on_gpu(output, GROUPS)[0].data_ptr() == address


@pytest.mark.parametrize("mean", [0.0, 10.0])
def test_scale_and_shift_are_those_of_a_group_norm_over_the_chunk(mean):
    frames = draw(5, HEIGHT, WIDTH, CHANNELS) + mean
    norm = GroupNorm(draw(CHANNELS), draw(CHANNELS), GROUPS, 1e-6)
    parts = [
        to_frames_and_sums_on_gpu(ConvOutput(OutputLayout.FRAMES, (part.clone(),)), GROUPS)[1]
        for part in frames.split([1, 4])
    ]
    sums = torch.cat(parts, dim=-1)
    count = frames.numel() // GROUPS
    by_kernel, by_torch = (
        scale_and_shift_on_gpu(sums, norm, count),
        scale_and_shift_in_torch(sums, norm, count),
    )
    torch.testing.assert_close(by_kernel, by_torch, rtol=1e-4, atol=1e-4)
    whole = frames.permute(3, 0, 1, 2).unsqueeze(0).double()
    expected = group_norm(whole, GROUPS, norm.gamma.double(), norm.beta.double(), 1e-6)[0].permute(1, 2, 3, 0)
    for scale, shift in (by_kernel.double(), by_torch.double()):
        torch.testing.assert_close(frames * scale + shift, expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("scale_and_shift", [scale_and_shift_in_torch, scale_and_shift_on_gpu])
def test_a_constant_chunk_has_a_finite_scale_and_shift(scale_and_shift):
    """With rounding, the computed variance of a constant can be negative."""
    frames = torch.full((1, HEIGHT, WIDTH, CHANNELS), 0.1)
    _, sums = to_frames_and_sums_in_torch(ConvOutput(OutputLayout.FRAMES, (frames,)), GROUPS)
    norm = GroupNorm(torch.ones(CHANNELS), torch.zeros(CHANNELS), GROUPS, 1e-6)
    assert scale_and_shift(sums * 1.0001, norm, frames.numel() // GROUPS).isfinite().all()


def modulation_of(latents):
    return Modulation(draw(2, CHANNELS), draw(latents, HEIGHT // 2, WIDTH // 2, 2 * CHANNELS))


@pytest.mark.parametrize(("frames", "latents", "layout", "is_start"), NORMALISE_CASES)
def test_normalise_matches_the_reference(frames, latents, layout, is_start):
    given, modulation = draw(frames, HEIGHT, WIDTH, CHANNELS), modulation_of(latents)
    cache = (
        torch.full((2, HEIGHT, WIDTH, CHANNELS), float("nan"))
        if is_start
        else draw(2, HEIGHT, WIDTH, CHANNELS)
    )
    is_head = layout is InputLayout.FRAMES and frames > 1
    found_cache, expected_cache = (
        None if is_head else CausalCache(cache.clone(), is_start) for _ in range(2)
    )
    expected = normalise_in_torch(given, modulation, layout, expected_cache)
    found = normalise_on_gpu(given.clone(), modulation, layout, found_cache)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert len(found) == (frames + 2 if layout is InputLayout.POINTS else 1)
    if found_cache is not None and expected_cache is not None:
        torch.testing.assert_close(found_cache.frames, expected_cache.frames, rtol=1e-4, atol=1e-5)
        assert found_cache.frames.isfinite().all()


@pytest.mark.parametrize("normalise", [normalise_in_torch, normalise_on_gpu])
def test_y_and_b_are_those_of_the_nearest_latent_pixel(normalise):
    given, modulation = draw(4, HEIGHT, WIDTH, CHANNELS), modulation_of(2)
    scale, shift = modulation.scale_and_shift
    large = interpolate(modulation.y_and_b.permute(3, 0, 1, 2).unsqueeze(0), size=(4, HEIGHT, WIDTH))
    y, b = large[0].permute(1, 2, 3, 0).chunk(2, dim=-1)
    expected = silu((given * scale + shift) * y + b)
    (found,) = normalise(given.clone(), modulation, InputLayout.FRAMES)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_only_frames_without_a_cache_are_overwritten():
    given = draw(1, HEIGHT, WIDTH, CHANNELS)
    kept = given.clone()
    cache = CausalCache(draw(2, HEIGHT, WIDTH, CHANNELS), is_start=True)
    normalise_on_gpu(given, modulation_of(1), InputLayout.FRAMES, cache)
    assert torch.equal(given, kept)  # still needed as a residual
    (active,) = normalise_on_gpu(given, modulation_of(1), InputLayout.FRAMES)
    assert active.data_ptr() == given.data_ptr()
