"""Verdicts from a week of metrics: too big, too small, or fine."""

import pytest

from filmgate.catalog.gpus import GIB
from filmgate.catalog.utilisation import Utilisation
from filmgate.planner.rightsize import plan_rightsize


def week(busy, gigabytes):
    return Utilisation((busy,) * 100, (gigabytes * GIB,) * 100, (), ())


@pytest.mark.parametrize(
    ("busy", "gigabytes", "judgement"),
    [(0.15, 8, "too big"), (0.70, 60, "fine"), (0.97, 60, "too small"), (0.5, 95, "too small")],
)
def test_utilisation_and_memory_determine_the_judgement(catalog, busy, gigabytes, judgement):
    answer = plan_rightsize(week(busy, gigabytes), catalog, "us-east-1", instance="g7e.2xlarge")
    assert answer.fleet.judgement == judgement
    assert judgement in answer.verdict


def test_a_recommended_smaller_machine_has_enough_memory(catalog):
    answer = plan_rightsize(week(0.15, 8), catalog, "us-east-1", instance="g7e.2xlarge")
    best = answer.options[0]
    assert best.usd_per_hour < catalog.price("g7e.2xlarge", "us-east-1").on_demand
    assert catalog.gpu(best.gpu).memory_bytes >= 8 * GIB * 1.2
    assert best.name in answer.verdict


def test_every_rejected_machine_has_the_figure_and_its_limit(catalog):
    answer = plan_rightsize(week(0.9, 40), catalog, "us-east-1", instance="g7e.2xlarge")
    assert answer.rejected
    assert all(r.number < r.limit for r in answer.rejected)


def test_metrics_of_an_unsupported_machine_cannot_be_judged(catalog):
    answer = plan_rightsize(week(0.5, 8), catalog, "us-east-1", instance="inf2.xlarge")
    assert answer.verdict.startswith("Cannot judge")
