"""The load test of `filmgate bench service`: its mix, its arrivals and its figures."""

import pytest

from filmgate.cli.bench_service import predict
from filmgate.cli.load_test.mix import ClipKind, parse_kind, plan_requests
from filmgate.cli.load_test.report import Measured, figures, table
from filmgate.cli.load_test.requests import Sent
from filmgate.cli.load_test.utilisation import busy_share
from filmgate.errors import FilmgateError, UsageError

SHORT, LONG = ClipKind(steps=1), ClipKind(steps=4, share=3.0)


def sent(kind, number, seconds):
    return Sent(kind, f"video_{number}", sent_at=100.0, linked_at=100.0 + seconds)


def test_a_kind_is_read_from_its_options():
    kind = parse_kind("model=wan,size=832x480,seconds=5,steps=4,guidance=1,share=2,catalog=wan2.1-t2v-1.3b")
    assert kind == ClipKind("wan", "832x480", 5.0, 4, 1.0, None, 2.0, "wan2.1-t2v-1.3b")
    assert kind.options == {"model": "wan", "size": "832x480", "seconds": "5", "steps": 4, "guidance": 1.0}
    assert parse_kind("").options == {}


@pytest.mark.parametrize("text", ["size", "colour=red", "steps=many", "size=wide", "share=0"])
def test_a_kind_that_cannot_be_sent_is_refused_with_its_option(text):
    with pytest.raises(FilmgateError) as refused:
        parse_kind(text)
    assert refused.value.option == "--clip"


def test_without_a_rate_all_requests_arrive_at_once_and_with_one_at_random_times():
    at_once = plan_requests([SHORT], clips=4, per_hour=None, minutes=None)
    assert (at_once.times, at_once.is_saturated) == ((0.0,) * 4, True)
    hour = plan_requests([SHORT, LONG], clips=2, per_hour=360, minutes=60)
    assert 300 < len(hour.times) < 420
    assert list(hour.times) == sorted(hour.times)
    assert 0.6 < hour.kinds.count(LONG) / len(hour.kinds) < 0.9
    with pytest.raises(UsageError, match="--per-hour"):
        plan_requests([SHORT], clips=2, per_hour=None, minutes=5)


def test_seconds_between_clips_are_compared_with_the_same_clips_alone():
    plan = plan_requests([SHORT], clips=4, per_hour=None, minutes=None)
    requests = [sent(SHORT, 0, 3.1), sent(LONG, 1, 6.1), sent(SHORT, 2, 8.1), sent(LONG, 3, 11.1)]
    ends = {"video_0": 103.0, "video_1": 106.0, "video_2": 108.0, "video_3": 111.0}
    found = figures(Measured(plan, requests, ends, 0.97), {SHORT: 1.9, LONG: 2.85}, usd_per_hour=4.5)
    assert found["seconds_between_clips"] == pytest.approx(8 / 3, abs=1e-4)
    assert found["denoise_and_decode_alone"] == pytest.approx((2.85 + 1.9 + 2.85) / 3, abs=1e-4)
    assert found["between_to_alone"] == pytest.approx(8 / 7.6, abs=1e-4)
    assert found["clips_per_hour"] == 1350
    assert found["usd_per_1000_clips"] == pytest.approx(1000 * 4.5 / 1350, abs=1e-4)
    assert found["latency_seconds"] == {"p50": 8.1, "p95": 11.1, "p99": 11.1}


def test_with_a_rate_the_device_waits_for_requests_so_there_is_no_ratio():
    plan = plan_requests([SHORT], clips=2, per_hour=60, minutes=None)
    refused = Sent(SHORT, None, 100.0, error="the queue is full")
    requests = [sent(SHORT, 0, 10.0), sent(SHORT, 1, 70.0), refused]
    found = figures(Measured(plan, requests, {}, None), {SHORT: 1.0}, None)
    assert (found["seconds_between_clips"], found["between_to_alone"]) == (None, None)
    assert (found["clips"], found["failed"], found["errors"]) == (2, 1, {"the queue is full": 1})
    assert found["clips_per_hour"] == pytest.approx(2 * 3600 / 70, abs=1e-3)
    text = table({"device": None, "mix": "defaults", "planned": {"nothing": "known"}, **found})
    assert "clips per hour" in text


def test_utilisation_counts_while_the_queue_is_full():
    samples = [(1.0, 0.0), (3.0, 1.0), (5.0, 0.9), (9.0, 0.1)]
    assert busy_share(samples, [8.0, 2.0, 6.0]) == pytest.approx(0.95)
    assert (busy_share(samples, [2.0, 6.0]), busy_share([], [1.0, 2.0, 3.0])) == (None, None)


def test_the_planner_predicts_the_clips_that_name_their_model():
    kind = ClipKind(steps=4, catalog="wan2.1-t2v-1.3b")
    shape = {"size": "832x480", "frames": 81, "fps": 16, "steps": 4, "guidance": 1.0, "quality": "full"}
    fast = predict({kind: shape}, "NVIDIA H200")[str(kind)]
    slow = predict({kind: shape | {"guidance": 5.0}}, "NVIDIA H200")[str(kind)]
    assert 1.0 < fast < slow < 2.1 * fast
    assert "catalog=" in str(predict({SHORT: shape}, "NVIDIA H200"))
