"""Memory: exact weights, estimates with the safety factor, and the peaks of published runs."""

from dataclasses import replace

import pytest

from filmgate.catalog.gpus import GIB
from filmgate.jobs import Size, Stage
from filmgate.planner.video.clip import clip_for
from filmgate.planner.video.memory import (
    Placement,
    budget,
    decode_bytes,
    first_fit,
    offloaded_bytes,
    placement_changes,
    stored_bytes,
)


@pytest.fixture
def small(catalog):
    model = catalog.video_model("wan2.1-t2v-1.3b")
    return model, clip_for(model, size=Size(832, 480), frames=81)


def test_the_fp32_decode_sets_the_peak_of_a_small_model(small):
    model, clip = small
    placed = Placement(decode_dtype="fp32", offload="cpu_text")
    found = budget(model, clip, placed, safety_factor=1.0)
    assert found.peak_stage == Stage.DECODE
    assert found.peak_bytes / GIB == pytest.approx(8.19, rel=0.1)


def test_the_safety_factor_applies_to_estimates_only(small):
    model, clip = small
    plain = budget(model, clip, Placement(), safety_factor=1.0)
    safe = budget(model, clip, Placement(), safety_factor=1.2)
    estimated = sum(x.bytes for x in plain.lines if x.is_estimate and Stage.DECODE in x.stages)
    grown = safe.stage_bytes(Stage.DECODE) - plain.stage_bytes(Stage.DECODE)
    assert grown == pytest.approx(0.2 * estimated)


def test_weights_are_two_bytes_per_parameter(small):
    model, clip = small
    lines = {line.name: line.bytes for line in budget(model, clip, Placement()).lines}
    assert lines["denoiser weights, bf16"] == 2 * 1_418_996_800
    assert lines["umt5-xxl-encoder weights, bf16"] == 2 * 5_680_910_336


def test_two_experts_take_twice_the_memory_unless_they_are_offloaded(catalog):
    model = catalog.video_model("wan2.2-t2v-a14b")
    clip = clip_for(model)
    resident = budget(model, clip, Placement()).peak_bytes
    staged = budget(model, clip, Placement(offload="model")).peak_bytes
    assert resident - staged > 2 * 14_288_491_584


@pytest.mark.parametrize("name", ["ltx-2-19b", "wan2.2-t2v-a14b"])
def test_all_weights_wait_in_host_memory_when_every_component_is_offloaded(catalog, name):
    model = catalog.video_model(name)
    assert offloaded_bytes(model, Placement(offload="model")) == stored_bytes(model)


def test_every_placement_change_lowers_the_peak(small):
    model, clip = small
    whole = budget(model, clip, Placement()).peak_bytes
    for change in placement_changes(model, clip, Placement()):
        assert change.memory.peak_bytes < whole, change.name


def test_the_decode_memory_of_a_causal_decoder_does_not_grow_with_the_length(catalog):
    model = catalog.video_model("wan2.1-t2v-14b")
    five = decode_bytes(model, clip_for(model, frames=81), Placement())
    ten = decode_bytes(model, clip_for(model, frames=161), Placement())
    assert ten < 1.06 * five


def test_the_attention_mask_dominates_hunyuan_decoding_at_1080p(catalog):
    model = catalog.video_model("hunyuanvideo")
    clip = clip_for(model, size=Size(1920, 1088), frames=121)
    assert decode_bytes(model, clip, Placement()) == pytest.approx(161.9e9, rel=0.02)


def test_the_first_placement_that_fits_is_used(small):
    model, clip = small
    assert first_fit(model, clip, Placement(), 80 * GIB).name == "all resident"
    assert first_fit(model, clip, Placement(), 20 * GIB).name == "components offloaded"
    assert first_fit(model, clip, Placement(), 12 * GIB).name == "layers offloaded"
    assert first_fit(model, clip, Placement(), 1 * GIB) is None


def test_sharding_divides_the_weights_over_the_gpus(small):
    model, clip = small
    whole = budget(model, clip, Placement(gpus=4))
    sharded = budget(model, clip, replace(Placement(gpus=4), is_sharded=True))
    assert sharded.peak_bytes < whole.peak_bytes
