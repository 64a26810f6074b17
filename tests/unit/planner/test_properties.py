"""Random questions: every verdict is feasible in a simulation that the planner did not use.

`make plan-check` asks 300 questions; FILMGATE_TEST_PLANS is their number.
"""

import os
import random
import re
from dataclasses import replace
from datetime import date

import pytest

from filmgate.planner.capabilities import FILMGATE, pipeline_class
from filmgate.planner.fleet.simulation import Operation, peak_arrivals, simulate
from filmgate.planner.fleet.tenancy import Tenancy
from filmgate.planner.fleet.traffic import TrafficShape
from filmgate.planner.report.numbers import usd
from filmgate.planner.report.page import to_page
from filmgate.planner.report.record import to_record
from filmgate.planner.report.tables import tables
from filmgate.planner.video.answer import plan_video
from filmgate.planner.video.clip import clip_for
from filmgate.planner.video.question import VideoQuestion

QUESTIONS = int(os.environ.get("FILMGATE_TEST_PLANS", "16"))
REGIONS = ("us-east-1", "us-west-2", "eu-central-1", "eu-north-1", "ap-northeast-1", "sa-east-1")
TODAY = date(2026, 11, 16)


def random_question(catalog, seed):
    draw = random.Random(seed)
    models = [m for m in catalog.video_models.values() if pipeline_class(m) in FILMGATE.pipelines]
    model = draw.choice(models)
    return VideoQuestion(
        model,
        clip_for(model, steps=draw.choice((4, 20, None))),
        region=draw.choice(REGIONS),
        clips_per_day=float(round(10 ** draw.uniform(0.5, 4.3))),
        slo_seconds=draw.choice((None, round(10 ** draw.uniform(1.5, 4)))),
        shape=draw.choice(list(TrafficShape)),
        tenants=draw.choice((1, 1, 3)),
        tenancy=draw.choice(list(Tenancy)),
        commit_discount=draw.choice((None, 0.3)),
        interruptible_share=draw.choice((0.0, 0.4)),
    )


@pytest.fixture(scope="module")
def plans(catalog, calibration):
    questions = [random_question(catalog, seed) for seed in range(QUESTIONS)]
    return [(question, plan_video(question, catalog, calibration)) for question in questions]


def latency_with_a_machine_lost(question, answer, seed):
    """p95 at the upper end of the interval, of one tenant's part of the fleet where tenants are separate."""
    size = answer.fleet.size
    left = size.needed_replicas // size.pools
    traffic = question.traffic(question.clips_per_day / size.pools)
    arrivals = peak_arrivals(traffic, max(8000, 20 * left), seed)
    outcome = simulate(arrivals, answer.time.high, Operation(left, left))
    ordered = sorted(outcome.latencies[len(arrivals) // 10 :])
    return ordered[int(0.95 * len(ordered))]


def test_ninety_five_per_cent_of_the_verdicts_are_feasible_in_another_simulation(plans):
    with_target = [
        (question, answer)
        for question, answer in plans
        if answer.is_possible and question.slo_seconds and answer.fleet.size
    ]
    late = [
        (question, latency)
        for seed, (question, answer) in enumerate(with_target, start=1000)
        if (latency := latency_with_a_machine_lost(question, answer, seed)) > question.slo_seconds * 1.02
    ]
    assert len(with_target) >= QUESTIONS / 8
    assert len(late) <= 0.05 * len(with_target), late


def test_nothing_is_recommended_that_filmgate_does_not_run(plans):
    for _, answer in plans:
        assert all(option.gpus_per_replica == 1 for option in answer.options)
        assert not re.search(r"^(Run|Use).*(fp8|adapter|GPUs per clip|scale to zero)", answer.verdict)


def test_every_possible_plan_has_a_plan_b_and_a_bill_that_adds_up(plans):
    for question, answer in plans:
        if not answer.is_possible:
            continue
        assert {way.name for way in answer.plan_b} >= {"another machine", "fewer steps", "the provider"}
        parts = sum(part.usd_per_day for part in answer.cost.purchase)
        assert answer.cost.usd_per_day == pytest.approx(parts)
        assert sum(part.instances for part in answer.cost.purchase) == answer.fleet.size.instances
        assert answer.cost.usd_per_clip == pytest.approx(parts / question.clips_per_day)
        assert answer.options[0].usd_per_unit == min(option.usd_per_unit for option in answer.options)


def test_a_provider_is_recommended_only_inside_the_jurisdiction(plans, catalog):
    for question, answer in plans:
        if answer.verdict.startswith("Use "):
            assert catalog.region(question.region).jurisdiction == "US"


def test_text_json_page_and_record_state_the_same_numbers(plans):
    for _, answer in plans[:12]:
        record, page = to_record(answer, TODAY), to_page(answer, TODAY)
        cells = {cell for table in tables(answer) for row in table.rows for cell in row}
        assert answer.verdict in record
        assert answer.as_json()["verdict"] == answer.verdict
        if not answer.is_possible:
            continue
        monthly, size = usd(answer.cost.usd_per_month), answer.fleet.size
        assert monthly in cells
        for text in (record, page):
            assert monthly in text
            assert str(size.instances) in text
        json = answer.as_json()
        assert json["fleet"]["instances"] == json["fleet"]["deployment"]["machines"] == size.instances
        assert json["cost"]["usd_per_month"] == pytest.approx(answer.cost.usd_per_month, rel=1e-4)
        if answer.verdict.startswith("Run "):
            assert f"Run {size.instances} x" in answer.verdict
            assert f"${answer.cost.usd_per_month:,.0f} per month" in answer.verdict


@pytest.mark.parametrize(
    "change",
    [
        lambda q: replace(q, clips_per_day=q.clips_per_day * 1.5),
        lambda q: replace(q, slo_seconds=q.slo_seconds * 0.8 if q.slo_seconds else 4000),
        lambda q: replace(q, spare_machines=2),
        lambda q: replace(q, tenants=6, tenancy=Tenancy.INSTANCE),
    ],
)
def test_more_work_and_tighter_rules_never_cost_less(plans, catalog, calibration, change):
    for question, answer in plans[: QUESTIONS // 3]:
        if not answer.is_possible:
            continue
        harder = plan_video(change(question), catalog, calibration)
        assert not harder.is_possible or harder.cost.usd_per_day >= answer.cost.usd_per_day * 0.9999, question
