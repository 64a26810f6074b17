import pytest
import torch

from benchmarks.bench_fidelity import compare, measure, seam
from tests.zoo_vaes import build_vae, draw_latents


def test_the_error_is_relative_to_the_reference_for_the_clip_and_for_every_frame():
    reference = torch.ones(3, 2, 4, 4)
    frames = reference.clone()
    frames[:, 1] *= 1.1
    found = measure(frames, reference)
    assert found.frame_errors == pytest.approx((0.0, 0.1), abs=1e-6)
    assert found.worst_frame_error == pytest.approx(0.1)
    assert found.relative_error == pytest.approx(0.1 / 2**0.5)


def test_a_seam_is_an_error_that_depends_on_the_position_in_the_chunk():
    assert seam([9.0, *[1.0, 1.0, 1.0, 1.0] * 3], [1, 4, 4, 4]) == 0
    assert seam([9.0, *[1.2, 1.0, 1.0, 1.0] * 3], [1, 4, 4, 4]) == pytest.approx(0.2)
    assert seam([9.0] * 3 + [1.0, 1.0, 1.0, 1.0, 1.3, 1.0, 1.0, 1.0] * 2, [3, 8, 8]) == pytest.approx(0.3)
    assert seam([9.0] * 3, [3]) == 0


def test_a_decoder_compared_with_itself_has_the_same_error():
    vae = build_vae("wan2.1").to(torch.bfloat16)
    found = compare(vae, lambda: draw_latents("wan2.1", vae, 2), "exact")
    assert found.error_ratio == found.worst_frame_ratio == 1
    assert 0 < found.exact.relative_error < 0.2
