"""Bills, purchase mixes and break-even points."""

from dataclasses import replace

import pytest

from filmgate.planner.fleet.money import bill, break_even, purchase_mix, scale_to_zero_hours
from filmgate.planner.fleet.pattern import Pattern, Situation, choose
from filmgate.planner.fleet.sizing import size_fleet
from filmgate.planner.fleet.traffic import TrafficShape, traffic_of


def test_a_warm_fleet_is_billed_for_24_hours():
    traffic = traffic_of(500, TrafficShape.STEADY)
    fleet = size_fleet(traffic, 60, 90, 1, 1)
    cost = bill(fleet, traffic, 2.0, service=60, cold_seconds=None)
    assert cost.usd_per_day == pytest.approx(fleet.instances * 24 * 2.0)
    busy = 500 * 60 / 3600 * 2.0
    assert cost.idle_usd_per_day == pytest.approx(cost.usd_per_day - busy)


def test_business_hours_are_billed_for_the_full_fleet_only_during_the_day():
    traffic = traffic_of(2000, TrafficShape.BUSINESS)
    fleet = size_fleet(traffic, 60, 90, 1, 1)
    cost = bill(fleet, traffic, 1.0, service=60, cold_seconds=None)
    assert cost.usd_per_day == pytest.approx(fleet.instances * 10 + 1 * 14)


def test_scaling_to_zero_costs_starts_and_cooldowns_but_never_more_than_staying_up():
    rare, often = traffic_of(4, TrafficShape.STEADY), traffic_of(4000, TrafficShape.STEADY)
    for traffic in (rare, often):
        fleet = size_fleet(traffic, 60, None, 1, 1)
        cost = bill(fleet, traffic, 1.0, service=60, cold_seconds=120)
        assert cost.instance_hours <= fleet.instances * 24
    fleet = size_fleet(rare, 60, None, 1, 1)
    expected = 4 * (60 + 300 + 120) / 3600
    assert scale_to_zero_hours(fleet, rare, 60, 120) == pytest.approx(expected, rel=0.02)


def test_break_even_is_the_volume_at_which_fleet_and_api_cost_the_same():
    assert break_even(lambda clips: 161.43, 7.50) == pytest.approx(21.5, abs=0.6)
    assert break_even(lambda clips: 1e12, 1.0) is None
    assert break_even(lambda clips: None, 1.0) is None


def test_warm_instances_are_committed_and_interruptible_work_runs_on_spot(catalog):
    traffic = traffic_of(4000, TrafficShape.BUSINESS)
    fleet = size_fleet(traffic, 60, 90, 1, 1)
    price = catalog.price("g7e.2xlarge", "us-east-1")
    mix = {p.how: p for p in purchase_mix(fleet, price, commit_discount=0.4, interruptible_share=0.25)}
    assert sum(p.instances for p in mix.values()) == fleet.instances
    assert mix["committed"].usd_per_hour == pytest.approx(price.on_demand * 0.6)
    assert mix["spot"].usd_per_hour == price.spot_median


def test_without_a_commitment_discount_the_on_demand_price_is_used(catalog):
    traffic = traffic_of(500, TrafficShape.STEADY)
    fleet = size_fleet(traffic, 60, 90, 1, 1)
    price = catalog.price("g7e.2xlarge", "us-east-1")
    (committed,) = purchase_mix(fleet, price, commit_discount=None, interruptible_share=0.0)
    assert committed.usd_per_hour == price.on_demand
    assert "no commitment rates" in committed.note


def test_a_managed_clip_is_billed_by_its_fixed_lengths(catalog):
    luma = catalog.video_apis["luma.ray-v2:0-720p"]
    assert luma.usd_per_clip(5.06) == pytest.approx(7.50)
    assert luma.usd_per_clip(6.0) == pytest.approx(13.50)
    assert luma.usd_per_clip(14.0) == pytest.approx(21.0)


BASE = Situation(
    slo_seconds=90,
    service_seconds=60,
    cold_seconds=120,
    utilisation=0.3,
    own_usd_per_clip=0.5,
    managed_usd_per_clip=7.5,
    adapters=1,
)


@pytest.mark.parametrize(
    ("change", "pattern"),
    [
        ({}, Pattern.WARM),
        ({"adapters": 5}, Pattern.ADAPTERS),
        ({"slo_seconds": None}, Pattern.QUEUE),
        ({"slo_seconds": 600}, Pattern.QUEUE),
        ({"slo_seconds": None, "utilisation": 0.8}, Pattern.WARM),
        ({"own_usd_per_clip": 9.0}, Pattern.MANAGED),
        ({"own_usd_per_clip": None}, Pattern.WARM),
    ],
)
def test_the_pattern_follows_from_latency_utilisation_and_cost_with_reasons(change, pattern):
    choice = choose(replace(BASE, **change))
    assert choice.pattern is pattern
    assert choice.reasons
