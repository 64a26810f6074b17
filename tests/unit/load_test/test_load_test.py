"""The load test of `filmgate bench service`: its mix, its arrivals and its figures."""

import re
from dataclasses import replace

import pytest

from filmgate.catalog.loader import load_calibration, load_catalog
from filmgate.errors import FilmgateError, UsageError
from filmgate.load_test.mix import ClipKind, parse_kind, plan_requests
from filmgate.load_test.prediction import ELSEWHERE, NOT_NAMED, Planner, simulate
from filmgate.load_test.report import Measured, figures, table
from filmgate.load_test.requests import Sent
from filmgate.load_test.utilization import busy_share, sampled_utilization
from filmgate.pipeline.bench.alone_result import Alone
from tests.nvml import MIG_UUID
from tests.waiting import wait_until

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
    assert found["clips_per_hour"] == 60
    text = table({"device": None, "mix": "defaults", "planned": {"reason": ELSEWHERE}, **found})
    assert "failed: the queue is full (1 times)" in text
    assert f"no plan: {ELSEWHERE}" in text


def test_clips_that_end_as_fast_as_they_arrive_are_as_many_per_hour():
    plan = plan_requests([SHORT], clips=7, per_hour=1200, minutes=None)
    requests = [
        Sent(SHORT, f"video_{n}", 100.0 + 3 * n, linked_at=101.5 + 3 * n) for n in range(7)
    ]  # every 3 s, each takes 1.5 s
    assert figures(Measured(plan, requests, {}, None), {}, None)["clips_per_hour"] == 1200
    assert figures(Measured(plan, requests[:1], {}, None), {}, 3.6)["clips_per_hour"] is None


def test_utilisation_counts_while_the_queue_is_full():
    samples = [(1.0, 0.0), (3.0, 1.0), (5.0, 0.9), (9.0, 0.1)]
    assert busy_share(samples, [8.0, 2.0, 6.0]) == pytest.approx(0.95)
    assert (busy_share(samples, [2.0, 6.0]), busy_share([], [1.0, 2.0, 3.0])) == (None, None)


def test_the_gpu_of_the_worker_is_sampled_and_not_the_first_one(nvml):
    """A MIG device, whose utilisation differs from that of its GPU; 40 and the number of its instance."""
    nvml.set(mig=3, mig_utilization=40)
    with sampled_utilization(MIG_UUID) as samples:
        wait_until(lambda: samples)
    assert {share for _, share in samples} == {0.42}
    with sampled_utilization("") as none:
        pass
    assert none == []


WAN = ClipKind(steps=4, catalog="wan2.1-t2v-1.3b")
SHAPE = Alone("NVIDIA H200", "GPU-1", "832x480", 81, 16, 4, 1.0, "full", 2.0, 0.5)


def predict(kind, shape, compilation="auto"):
    return Planner.open([kind], load_catalog(), load_calibration()).predict({kind: shape}, compilation)


def test_the_planner_predicts_the_clips_that_name_their_model():
    fast, eager = predict(WAN, SHAPE)[WAN], predict(WAN, SHAPE, "off")[WAN]
    guided = predict(WAN, replace(SHAPE, guidance=5.0))[WAN]
    assert 1.0 < fast < guided < 2.1 * fast
    assert fast < eager


@pytest.mark.parametrize(
    ("kind", "shape", "reason"),
    [
        (SHORT, SHAPE, NOT_NAMED),
        (WAN, replace(SHAPE, device="cpu"), "the planner's catalog has no GPU cpu"),
        (WAN, replace(SHAPE, size="833x480"), "833x480"),
    ],
)
def test_without_a_prediction_there_is_a_reason_and_the_test_goes_on(kind, shape, reason):
    assert reason in predict(kind, shape)
    assert Planner.open([WAN], load_catalog(), load_calibration()).predict({}) == ELSEWHERE


def test_a_model_that_the_catalog_does_not_have_is_refused_before_the_test():
    with pytest.raises(UsageError, match="is not in the catalog") as refused:
        predict(ClipKind(catalog="nosuch"), SHAPE)
    assert refused.value.option == "--clip"


def test_the_planned_figures_are_those_of_the_same_requests_on_one_gpu():
    full = plan_requests([SHORT], clips=4, per_hour=None, minutes=None)
    planned = figures(simulate(full, {SHORT: 2.0}), {}, usd_per_hour=3.6)
    assert (planned["clips_per_hour"], planned["usd_per_1000_clips"]) == (1800, 2.0)
    assert planned["latency_seconds"] == {"p50": 6.0, "p95": 8.0, "p99": 8.0}
    spread = plan_requests([SHORT], clips=200, per_hour=180, minutes=None)
    waiting = figures(simulate(spread, {SHORT: 2.0}), {}, None)["latency_seconds"]
    assert 2.0 == waiting["p50"] < waiting["p99"] < 10.0
    text = table({"device": "GPU", "mix": "x", "planned": planned, **planned})
    assert re.search(r"latency seconds, p95 +8.0 +8.0", text)
