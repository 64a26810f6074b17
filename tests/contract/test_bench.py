"""The decode benchmark: its variants write the same clip, and its measurements are correct."""

import json
import re
from types import SimpleNamespace
from xml.etree import ElementTree as ET

import pytest
import torch
from torch.profiler import ProfilerActivity
from typer.testing import CliRunner

from filmgate.cli import app
from filmgate.errors import UsageError
from filmgate.pipeline.bench import measure
from filmgate.pipeline.bench.decode import (
    DECODE_ALONE,
    EXACT,
    LOOPS,
    OVERLAPPED,
    PLAIN,
    VARIANTS,
    DecodeBench,
    median_phases,
    open_bench,
)
from filmgate.pipeline.bench.drawing import draw_timeline
from filmgate.pipeline.bench.measure import GpuUse, HostMemory, busy_share, read_trace, resident_bytes
from filmgate.pipeline.bench.vaes import random_latents
from filmgate.pipeline.clip_writer import Phases
from filmgate.pipeline.transfer.streams import LANES
from filmgate.settings import PipelineSettings

pytestmark = pytest.mark.usefixtures("no_thread_left")


@pytest.fixture(scope="module")
def bench() -> DecodeBench:
    running, _ = open_bench("wan-tiny", "32x32", 9, 1, PipelineSettings(device="cpu"))
    return running


def test_the_loops_write_equal_bytes(bench):
    assert bench.pair().is_equal


def test_the_diffusers_variant_writes_the_same_picture(bench):
    """Rounding to 8-bit RGB causes a difference of 0.16 of 255. A lossy encoder causes ten times that."""
    assert 0 < bench.luma_difference() < 0.25


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_is_timed(bench, variant):
    measured = bench.measure(variant)
    assert measured.seconds > 0
    assert len(measured.all_seconds) == 1
    assert measured.peak_host_bytes > 0
    assert (measured.first_fragment_seconds is not None) == (variant in {*LOOPS, EXACT})
    assert (measured.phases is not None) == (variant in {*LOOPS, EXACT})
    assert (measured.peak_device_bytes, measured.gpu) == (None, None)


def test_the_gpu_of_the_setting_is_measured_which_may_not_be_the_first(monkeypatch):
    running, _ = open_bench("wan-tiny", "32x32", 9, 1, PipelineSettings(device="cpu"))
    asked = []
    for name in ("synchronize", "reset_peak_memory_stats", "max_memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda device=None: asked.append(device))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    running._is_cuda = True
    running.measure(DECODE_ALONE)
    assert len(asked) == 4
    assert set(asked) == {running.vae.device}


def test_the_timeline_has_every_lane_of_both_loops(bench):
    pair = bench.pair()
    for spans in pair.spans.values():
        assert {span.lane for span in spans} == set(LANES)
        assert all(span.stop >= span.start >= 0 for span in spans)
        assert len([span for span in spans if span.lane == "decode"]) == 3
    drawing = ET.fromstring(draw_timeline(pair.spans, "a < b & c"))
    assert drawing.tag.endswith("svg")


def test_the_median_is_taken_per_phase():
    rounds = [Phases(1, 5, 1, 7), Phases(2, 4, 1, 9), Phases(3, 6, 1, 8)]
    assert median_phases(rounds) == Phases(2, 5, 1, 8)


TINY = ["bench", "decode", "--vae", "wan-tiny", "--size", "32x32", "--frames", "9", "--rounds", "1"]


def test_each_result_is_printed_and_written_as_soon_as_it_is_measured(tmp_path, monkeypatch):
    """Interrupted during the third variant: the first two are in the file and on stderr."""
    measure = DecodeBench.measure

    def interrupt(self, variant):
        if variant == PLAIN:
            raise KeyboardInterrupt
        return measure(self, variant)

    monkeypatch.setattr(DecodeBench, "measure", interrupt)
    done = CliRunner().invoke(app, [*TINY, "--output", str(tmp_path / "kept.json")])
    kept = json.loads((tmp_path / "kept.json").read_text())
    printed = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    assert done.exit_code != 0
    assert list(kept["results"]) == [name for line in printed for name in line] == [OVERLAPPED, DECODE_ALONE]
    assert kept["ratios"]["overlapped_to_decode_alone"] > 0


def test_the_benchmark_prints_one_json_object_and_draws_one_timeline(tmp_path):
    done = CliRunner().invoke(app, [*TINY, "--json", "--timeline", str(tmp_path / "loops.svg")])
    result = json.loads(done.stdout)
    assert list(result["results"]) == [v for v in VARIANTS if not v.startswith("exact")]
    assert result["agreement"]["is_plain_equal_to_overlapped"]
    phases = result["results"][OVERLAPPED]["phases"]
    assert set(phases) == {f"{name}_seconds" for name in ("setup", "decode", "drain", "publish")}
    assert ET.parse(tmp_path / "loops.svg").getroot().tag.endswith("svg")


def test_the_table_shows_the_phases_of_a_loop():
    done = CliRunner().invoke(app, [*TINY, "--variants", OVERLAPPED])
    assert re.search(r"setup \d+\.\d+ s, decode \d+\.\d+ s, drain \d+\.\d+ s, publish", done.stdout)


def test_the_decoder_alone_writes_no_file(bench, tmp_path):
    assert bench._run(DECODE_ALONE, bench.draw(), tmp_path / "clip.mp4") is None
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


def test_a_trace_separates_work_copies_and_waiting():
    events = [
        {"cat": "kernel", "name": "conv", "ts": 0.0, "dur": 50.0},
        {"cat": "gpu_memset", "name": "Memset (Device)", "ts": 51.0, "dur": 9.0},
        {"cat": "kernel", "name": "conv", "ts": 90.0, "dur": 10.0},
        {
            "cat": "gpu_memcpy",
            "name": "Memcpy DtoH (Device -> Pinned)",
            "ts": 5.0,
            "dur": 80.0,
            "args": {"bytes": 7},
        },
        {
            "cat": "gpu_memcpy",
            "name": "Memcpy DtoD (Device -> Device)",
            "ts": 5.0,
            "dur": 1.0,
            "args": {"bytes": 9},
        },
        {"cat": "cpu_op", "name": "aten::conv2d", "ts": 0.0, "dur": 100.0},
    ]
    use = read_trace(events)
    assert use.kernel_utilisation == pytest.approx(0.69)
    assert use.bytes_to_host == 7
    assert use.waiting == pytest.approx(0.30)
    assert [(k.name, k.milliseconds, k.launches) for k in use.kernels] == [
        ("conv", pytest.approx(0.06), 2),
        ("Memset (Device)", pytest.approx(0.009), 1),
    ]


def test_the_median_of_several_profiled_rounds_is_reported(monkeypatch):
    uses = iter([GpuUse(0.99, 1, 0.01), GpuUse(0.97, 2, 0.03), GpuUse(0.98, 3, 0.02)])
    monkeypatch.setattr(measure, "read_trace", lambda _: next(uses))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.profiler, "ProfilerActivity", SimpleNamespace(CUDA=ProfilerActivity.CPU))
    runs = []
    use = measure.profile_gpu(lambda: runs.append(torch.ones(2).sum()), rounds=3)
    assert len(runs) == 6  # each round has a warm-up
    assert (use.kernel_utilisation, use.bytes_to_host, use.waiting) == (0.98, 3, 0.02)
    assert use.all_utilisations == (0.99, 0.97, 0.98)


def test_peak_host_memory_is_at_least_the_resident_memory():
    with HostMemory() as memory:
        pass
    assert memory.peak_bytes >= resident_bytes() // 2


@pytest.mark.parametrize(("size", "frames", "option"), [((30, 32), 9, "--size"), ((32, 32), 8, "--frames")])
def test_sizes_that_a_vae_does_not_support_are_refused(bench, size, frames, option):
    with pytest.raises(UsageError) as caught:
        random_latents("wan-tiny", size, frames, bench.vae)
    assert caught.value.option == option


@pytest.mark.parametrize("size", [(0, 0), (0, 720), (-8, 8)])
def test_an_empty_picture_is_refused_and_the_option_named(size):
    with pytest.raises(UsageError, match="multiples of 8") as caught:
        random_latents("wan2.1", size, 5, None)
    assert caught.value.option == "--size"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--vae", "nosuch"], "there is no VAE 'nosuch'; use one of wan2.1,"),
        (["--variants", "nosuch"], "there is no variant nosuch; use some of overlapped,"),
    ],
)
def test_a_name_that_the_bench_does_not_know_is_refused_with_those_it_knows(options, message):
    with pytest.raises(UsageError, match=message):
        CliRunner().invoke(app, ["bench", "decode", *options], catch_exceptions=False)


def test_the_vae_of_any_model_of_a_measured_family_can_be_measured():
    """Flipbook's VAE has channels of its own."""
    running, about = open_bench("flipbook", "64x64", 5, 1, PipelineSettings(device="cpu"))
    assert (about["width"], about["height"], about["frames"]) == (64, 64, 5)
    assert running.measure(DECODE_ALONE).seconds > 0


def test_a_model_whose_vae_is_not_measured_is_refused_with_the_classes_that_are(model_folder):
    with pytest.raises(
        UsageError, match="does not measure AutoencoderKLTemporalDecoder; it measures"
    ) as caught:
        open_bench(str(model_folder("svd")), "64x64", 5, 1, PipelineSettings(device="cpu"))
    assert caught.value.option == "--model"
