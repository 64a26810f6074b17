"""Rates, stage times and the bound."""

from dataclasses import replace

import pytest

from filmgate.jobs import Size
from filmgate.models.quality import LEVEL_NAMES, full_steps
from filmgate.planner.roofline import Bound
from filmgate.planner.video.clip import clip_for
from filmgate.planner.video.clip_time import clip_time, exchange_bytes
from filmgate.planner.video.rates import Software, StageTime, decode_time, forward_time, rates
from filmgate.planner.video.work import decode_work, forward_work


@pytest.fixture
def wan(catalog):
    model = catalog.video_model("wan2.1-t2v-14b")
    return model, clip_for(model, size=Size(1280, 720), frames=81, steps=50)


def test_no_rate_exceeds_the_peak(catalog, constants):
    for gpu in catalog.gpus.values():
        if gpu.half_flops and gpu.bandwidth:
            rate = rates(gpu, Software(), constants)
            assert max(rate.linear, rate.attention, rate.convolution) < gpu.half_flops
            assert max(rate.bandwidth, rate.decode_bandwidth) < gpu.bandwidth


def test_a_gpu_without_published_figures_is_rejected(catalog, constants):
    with pytest.raises(ValueError, match="B300"):
        rates(catalog.gpu("B300"), Software(), constants)


def test_denoising_is_compute_bound_and_takes_most_of_the_time(catalog, constants, wan):
    model, clip = wan
    time = clip_time(model, clip, catalog.gpu("H100"), 1, Software(), constants)
    assert time.of("denoise").bound is Bound.COMPUTE
    assert time.bound is Bound.COMPUTE
    assert time.of("denoise").seconds > 0.9 * time.seconds


def test_compiled_operators_move_fewer_bytes(catalog, constants, wan):
    model, clip = wan
    gpu = catalog.gpu("H200")
    eager = clip_time(model, clip, gpu, 1, Software(mode="eager"), constants).seconds
    compiled = clip_time(model, clip, gpu, 1, Software(mode="compiled"), constants).seconds
    assert 0.8 < compiled / eager < 1.0


def test_the_interconnect_takes_time_and_is_slower_without_nvlink(catalog, constants, wan):
    model, clip = wan
    work = forward_work(model, clip)
    for name in ("L40S", "H100"):
        rate = rates(catalog.gpu(name), Software(), constants)
        two = forward_time(work, rate, 2, exchange_bytes(model, clip, 2))
        assert two.interconnect > 0
        assert two.compute < forward_time(work, rate).compute
    slow = rates(catalog.gpu("L40S"), Software(), constants).link
    assert rates(catalog.gpu("H100"), Software(), constants).link > 10 * slow


def test_fp8_accelerates_matrix_products_only_if_the_gpu_supports_it(catalog, constants):
    fp8 = Software(precision="fp8")
    hopper, ampere = catalog.gpu("H100"), catalog.gpu("A100-80")
    assert rates(hopper, fp8, constants).linear > 1.9 * rates(hopper, Software(), constants).linear
    assert rates(hopper, fp8, constants).attention == rates(hopper, Software(), constants).attention
    assert rates(ampere, fp8, constants).linear == rates(ampere, Software(), constants).linear


def test_the_bound_is_the_largest_part():
    assert StageTime("x", 1, 2, 0.5).bound is Bound.MEMORY
    assert StageTime("x", 1, 2, 3).bound is Bound.INTERCONNECT
    assert replace(StageTime("x", 1, 0, 0), compute=5).seconds == 5


def test_a_group_norm_takes_the_same_time_on_large_and_small_gpus(catalog, constants):
    model = catalog.video_model("cogvideox-2b")
    work = decode_work(model, clip_for(model))
    bare = replace(work, norm_values=0.0)

    def extra(gpu):
        rate = rates(catalog.gpu(gpu), Software(), constants)
        return decode_time(work, rate).memory - decode_time(bare, rate).memory

    assert extra("H200") == pytest.approx(extra("L4"))
    whole = decode_time(work, rates(catalog.gpu("H200"), Software(), constants)).seconds
    assert 0.2 < extra("H200") / whole < 0.5


@pytest.mark.parametrize(
    ("name", "shape", "measured"),
    [
        ("wan2.1-t2v-1.3b", (1280, 720, 81), 0.89),
        ("wan2.2-ti2v-5b", (1280, 704, 121), 2.06),
        ("cogvideox-2b", (720, 480, 49), 0.41),
    ],
)
def test_the_fast_decoder_is_included_only_where_it_is_used(catalog, constants, name, shape, measured):
    model = catalog.video_model(name)
    width, height, frames = shape
    clip = clip_for(model, size=Size(width, height), frames=frames)
    ours = Software(has_fast_decoder=True)

    def decode(gpu, software):
        return clip_time(model, clip, catalog.gpu(gpu), 1, software, constants).of("decode").seconds

    # The formula has an error of the same size for the VAE's layers.
    assert decode("H200", ours) == pytest.approx(measured, rel=0.25)
    assert decode("H200", Software()) > 2.5 * decode("H200", ours)
    assert decode("L40S", ours) == decode("L40S", Software())
    tiled = Software(has_fast_decoder=True, is_tiled=True)
    assert decode("H200", tiled) == decode("H200", Software(is_tiled=True))


def test_a_clip_takes_the_passes_of_its_quality_level(catalog, constants):
    model = catalog.video_model("wan2.1-t2v-14b")
    times = {}
    for level in LEVEL_NAMES:
        clip = clip_for(model, quality=level)
        assert clip.passes == full_steps(level, clip.steps, has_guidance=True) * 2
        times[level] = (
            clip_time(model, clip, catalog.gpu("H200"), 1, Software(), constants).of("denoise").seconds
        )
    assert times["draft"] / times["full"] == pytest.approx(clip.passes / clip_for(model).passes)
    assert times["full"] > times["balanced"] > times["draft"]
