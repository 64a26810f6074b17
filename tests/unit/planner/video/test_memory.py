"""Memory: weights exact, estimates with their factor, the peak where the published runs had it."""

from dataclasses import replace

import pytest

from filmgate.planner.video.memory import GIB, Placement, Stage, budget, decode_bytes, first_fit, levers
from filmgate.planner.video.work import clip_for


@pytest.fixture
def small(catalog):
    model = catalog.video_model("wan2.1-t2v-1.3b")
    return model, clip_for(model, width=832, height=480, frames=81)


def test_the_fp32_decode_sets_the_peak_of_a_small_model(small):
    model, clip = small
    placed = Placement(decode_dtype="fp32", offload="cpu_text")
    found = budget(model, clip, placed, safety_factor=1.0)
    assert found.peak_stage is Stage.DECODE
    assert found.peak_bytes / GIB == pytest.approx(8.19, rel=0.1)


def test_the_safety_factor_is_on_estimates_alone(small):
    model, clip = small
    plain = budget(model, clip, Placement(), safety_factor=1.0)
    safe = budget(model, clip, Placement(), safety_factor=1.2)
    estimated = sum(x.bytes for x in plain.lines if x.is_estimate and Stage.DECODE in x.stages)
    grown = safe.stage_bytes(Stage.DECODE) - plain.stage_bytes(Stage.DECODE)
    assert grown == pytest.approx(0.2 * estimated)


def test_weights_are_two_bytes_a_parameter(small):
    model, clip = small
    lines = {line.name: line.bytes for line in budget(model, clip, Placement()).lines}
    assert lines["denoiser weights, bf16"] == 2 * 1_418_996_800
    assert lines["umt5-xxl-encoder weights, bf16"] == 2 * 5_680_910_336


def test_two_experts_weigh_twice_unless_they_take_turns(catalog):
    model = catalog.video_model("wan2.2-t2v-a14b")
    clip = clip_for(model)
    resident = budget(model, clip, Placement()).peak_bytes
    staged = budget(model, clip, Placement(offload="model")).peak_bytes
    assert resident - staged > 2 * 14_288_491_584


def test_tiling_and_offloading_lower_the_peak_and_nothing_raises_it(small):
    model, clip = small
    whole = budget(model, clip, Placement()).peak_bytes
    for lever in levers(model, clip, Placement()):
        assert lever.peak_bytes < whole, lever.name


def test_decode_memory_is_flat_in_clip_length_for_a_causal_decoder(catalog):
    model = catalog.video_model("wan2.1-t2v-14b")
    five = decode_bytes(model, clip_for(model, frames=81), Placement())
    ten = decode_bytes(model, clip_for(model, frames=161), Placement())
    assert ten < 1.06 * five


def test_the_hunyuan_mask_rules_at_1080p(catalog):
    model = catalog.video_model("hunyuanvideo")
    clip = clip_for(model, width=1920, height=1088, frames=121)
    assert decode_bytes(model, clip, Placement()) == pytest.approx(161.9e9, rel=0.02)


def test_the_first_rung_that_fits_is_taken(small):
    model, clip = small
    assert first_fit(model, clip, Placement(), 80 * GIB)[0] == "all resident"
    assert first_fit(model, clip, Placement(), 17 * GIB)[0] == "text encoder offloaded"
    assert first_fit(model, clip, Placement(), 1 * GIB) is None


def test_sharding_divides_weights_by_the_gpus(small):
    model, clip = small
    whole = budget(model, clip, Placement(gpus=4))
    sharded = budget(model, clip, replace(Placement(gpus=4), is_sharded=True))
    assert sharded.peak_bytes < whole.peak_bytes
