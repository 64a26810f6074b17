"""The decode benchmark: its variants make the same clip, and its instruments count right."""

from xml.etree import ElementTree as ET

import pytest

from filmgate.errors import UsageError
from filmgate.pipeline.bench.decode import FLOOR, OVERLAPPED, PLAIN, VARIANTS, DecodeBench
from filmgate.pipeline.bench.drawing import draw_timeline
from filmgate.pipeline.bench.measure import HostMemory, busy_share, resident_bytes
from filmgate.pipeline.bench.setup import open_bench
from filmgate.pipeline.bench.vaes import random_latents
from filmgate.pipeline.timeline import LANES
from filmgate.settings import PipelineSettings

pytestmark = pytest.mark.usefixtures("no_thread_left")


@pytest.fixture(scope="module")
def bench() -> DecodeBench:
    running, _ = open_bench("wan-tiny", "32x32", 9, 1, PipelineSettings(device="cpu"))
    return running


def test_the_loops_write_equal_bytes_and_diffusers_the_same_picture(bench):
    """Rounding to 8-bit RGB on the way costs 0.16 of 255. A lossy encoder's own noise is ten times that."""
    agreement = bench.compare()
    assert agreement.is_plain_equal_to_overlapped
    assert agreement.mean_luma_difference_to_diffusers < 0.25


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_is_timed(bench, variant):
    measured = bench.measure(variant)
    assert measured.seconds > 0
    assert len(measured.all_seconds) == 1
    assert measured.peak_host_bytes > 0
    assert (measured.first_fragment_seconds is not None) == (variant in (PLAIN, OVERLAPPED))
    assert (measured.peak_device_bytes, measured.gpu) == (None, None)


@pytest.mark.parametrize("variant", [PLAIN, OVERLAPPED])
def test_the_timeline_shows_every_lane_and_draws(bench, variant):
    spans = bench.timeline(variant)
    assert {span.lane for span in spans} == set(LANES)
    assert all(span.stop >= span.start >= 0 for span in spans)
    assert len([span for span in spans if span.lane == "decode"]) == 3
    drawing = ET.fromstring(draw_timeline({variant: spans}, "a < b & c"))
    assert drawing.tag.endswith("svg")


def test_the_floor_writes_nothing(bench, tmp_path):
    assert bench._run(FLOOR, bench._draw(), tmp_path / "clip.mp4") is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("intervals", "share"),
    [
        ([], 0.0),
        ([(0, 10)], 1.0),
        ([(0, 4), (6, 10)], 0.8),
        ([(0, 6), (2, 10)], 1.0),
        ([(5, 10), (0, 5)], 1.0),
    ],
)
def test_busy_share_is_the_union_over_the_span(intervals, share):
    assert busy_share(intervals) == pytest.approx(share)


def test_host_memory_is_never_less_than_what_is_held():
    with HostMemory() as memory:
        pass
    assert memory.peak_bytes >= resident_bytes() // 2


@pytest.mark.parametrize(("size", "frames", "option"), [((30, 32), 9, "--size"), ((32, 32), 8, "--frames")])
def test_sizes_a_vae_cannot_make_are_refused(bench, size, frames, option):
    with pytest.raises(UsageError) as caught:
        random_latents("wan-tiny", size, frames, bench._vae)
    assert caught.value.option == option
