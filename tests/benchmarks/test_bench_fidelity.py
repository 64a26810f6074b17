import pytest
import torch

from benchmarks.bench_fidelity import compare, measure, seam
from filmgate.pipeline.bench.vaes import build_vae, random_latents


def test_the_error_is_relative_to_the_reference_and_the_worst_frame_is_reported():
    reference = torch.ones(3, 2, 4, 4)
    frames = reference.clone()
    frames[:, 1] += 0.5
    found = measure(frames, reference)
    assert found.frame_errors == (0.0, 0.5)
    assert found.worst_frame_error == 0.5
    assert found.relative_error == pytest.approx(0.5 / 2**0.5)


def test_a_seam_is_an_error_that_depends_on_the_position_in_the_chunk():
    assert seam([9.0, 1.0, 1.0, 1.0, 1.0], [1, 2, 2]) == 0, "the first chunk is not counted"
    assert seam([1.0, 1.0, 1.5, 1.0, 1.5], [1, 2, 2]) == pytest.approx(0.5)


def test_two_decoders_are_compared_with_float32():
    vae = build_vae("wan-tiny", torch.device("cpu"), torch.bfloat16)
    found = compare(vae, lambda: random_latents("wan-tiny", (32, 32), 9, vae), choice="exact")
    assert 0 < found.exact.relative_error < 1
    assert found.error_ratio == 1
