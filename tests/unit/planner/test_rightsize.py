"""Verdicts from a week of metrics: too big, too small, or fine."""

import pytest

from filmgate.catalog.gpus import GIB
from filmgate.planner.rightsize import GpuMetrics, plan_rightsize


def week(busy, gigabytes, sm=(), dram=()):
    """A week whose memory varies by a tenth, as that of a load does."""
    memory = tuple(gigabytes * GIB * (0.9 + i / 1000) for i in range(101))
    return GpuMetrics((busy,) * 101, memory, sm, dram)


@pytest.mark.parametrize(
    ("busy", "gigabytes", "judgement"),
    [
        (0.15, 8, "too big"),
        (0.39, 8, "too big"),
        (0.41, 8, "fine"),
        (0.70, 60, "fine"),
        (0.83, 60, "too small"),
        (0.97, 60, "too small"),
        (0.5, 95, "too small"),
    ],
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


@pytest.mark.parametrize("busy", [0.09, 0.103, 0.2, 0.38])
def test_a_recommended_machine_is_not_too_small_for_the_load_itself(catalog, busy):
    answer = plan_rightsize(week(busy, 20), catalog, "us-east-1", instance="p5.48xlarge")
    best = answer.options[0]
    again = plan_rightsize(week(best.utilisation, 20), catalog, "us-east-1", instance=best.name)
    assert (answer.fleet.judgement, again.fleet.judgement) == ("too big", "fine")


def test_a_machine_that_is_too_big_is_never_replaced_by_a_more_expensive_one(catalog):
    """Its memory is needed, so every machine that fits costs more."""
    answer = plan_rightsize(week(0.05, 32), catalog, "us-east-1", instance="g6e.xlarge")
    assert answer.fleet.judgement == "too big"
    assert [option.name for option in answer.options] == ["g6e.xlarge"]
    assert "Move to" not in answer.verdict
    assert "No cheaper machine in us-east-1 has the 38.4 GiB per GPU" in answer.verdict
    assert "not cheaper than g6e.xlarge" in {rejected.reason for rejected in answer.rejected}


@pytest.mark.parametrize(
    ("samples", "judgement"),
    [
        (week(0.6, 39.5), "fine"),
        (week(0.85, 20, dram=(0.5,) * 9), "fine"),
        (week(0.97, 20, dram=(0.2,) * 9), "starved"),
    ],
)
def test_a_machine_that_carries_its_load_is_not_rejected(catalog, samples, judgement):
    answer = plan_rightsize(samples, catalog, "us-east-1", instance="g6e.xlarge")
    assert answer.fleet.judgement == judgement
    assert {"g6e.xlarge", "g6e.2xlarge"} <= {option.name for option in answer.options}


def test_a_bare_gpu_has_no_price_and_the_cheapest_machine_is_named(catalog):
    answer = plan_rightsize(week(0.9, 20), catalog, "us-east-1", gpu=catalog.gpu("L4"))
    best = answer.options[0]
    assert f"The cheapest machine in us-east-1 that fits is {best.name} at $" in answer.verdict


def test_every_rejected_machine_has_the_figure_and_its_limit(catalog):
    answer = plan_rightsize(week(0.9, 40), catalog, "us-east-1", instance="g7e.2xlarge")
    assert answer.rejected
    assert all(r.number is None or r.number < r.limit for r in answer.rejected)
    assert {"inf2.xlarge", "p3.2xlarge"} <= {r.name for r in answer.rejected}


def test_metrics_of_an_unsupported_machine_cannot_be_judged(catalog):
    answer = plan_rightsize(week(0.5, 8), catalog, "us-east-1", instance="inf2.xlarge")
    assert answer.verdict.startswith("Cannot judge")


def test_memory_traffic_is_a_load_and_its_bandwidth_must_be_replaced(catalog):
    busy = week(0.3, 8, sm=(0.2,) * 9, dram=(0.9,) * 9)
    answer = plan_rightsize(busy, catalog, "us-east-1", instance="g7e.2xlarge")
    assert answer.fleet.judgement == "too small"
    needed = catalog.gpu("RTX-PRO-6000-BSE").bandwidth * 0.9
    instances = [catalog.instance(option.name) for option in answer.options]
    assert all(catalog.gpu(i.gpu).bandwidth * i.gpus >= needed for i in instances)


def test_a_gpu_whose_kernels_do_nothing_is_starved_and_not_too_small(catalog):
    idle = week(0.97, 8, sm=(0.1,) * 9, dram=(0.05,) * 9)
    answer = plan_rightsize(idle, catalog, "us-east-1", instance="g7e.2xlarge")
    assert answer.fleet.judgement == "starved"
    assert "Move to" not in answer.verdict


def test_memory_that_an_engine_reserved_is_not_a_need(catalog):
    reserved = GpuMetrics((0.2,) * 99, (90.0 * GIB,) * 99, (), ())
    answer = plan_rightsize(reserved, catalog, "us-east-1", instance="g7e.2xlarge")
    assert answer.fleet.judgement == "too big"
    assert answer.options[0].usd_per_hour <= catalog.price("g7e.2xlarge", "us-east-1").on_demand


def test_more_memory_than_the_device_has_cannot_be_judged(catalog):
    answer = plan_rightsize(week(0.5, 500), catalog, "us-east-1", instance="g7e.2xlarge")
    assert answer.verdict.startswith("Cannot judge")
