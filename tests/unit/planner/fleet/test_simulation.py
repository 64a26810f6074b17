"""The simulated fleet: waits, scaling, hours, and the formulas that are held to it."""

import math

import pytest

from filmgate.planner.fleet.simulation import (
    Operation,
    day_arrivals,
    fixed_fleet_latencies,
    latency_percentile,
    simulate,
    unit_arrivals,
)
from filmgate.planner.fleet.sizing import Demand, fewest_replicas
from filmgate.planner.fleet.traffic import Traffic, TrafficShape, recorded_traffic, traffic_of
from filmgate.planner.percentiles import percentile


def test_clips_start_in_order_on_the_replica_that_is_free_first():
    outcome = simulate([0, 1, 2, 3], 10, Operation(2, 2))
    assert outcome.latencies == (10, 10, 18, 18)
    assert outcome.machine_seconds == 2 * 21
    assert outcome.starts == 0


def test_a_fleet_that_scales_to_zero_pays_starts_and_cooldowns_and_its_clips_wait_for_them():
    fleet = Operation(0, 2, start_seconds=100, cooldown_seconds=300)
    outcome = simulate([0, 5000], 60, fleet)
    assert outcome.latencies == (160, 160)
    assert outcome.starts == 2
    assert outcome.machine_seconds == (160 + 300) + 160
    soon = simulate([0, 400], 60, fleet)
    assert soon.latencies == (160, 60)
    assert soon.starts == 1


def test_the_backlog_decides_how_many_replicas_start():
    burst = [0.0] * 8
    one = simulate(burst, 60, Operation(0, 8, 10, waiting_per_replica=8))
    each = simulate(burst, 60, Operation(0, 8, 10))
    assert (one.starts, each.starts) == (1, 8)
    assert percentile(one.latencies, 0.99) == 10 + 8 * 60
    assert percentile(each.latencies, 0.99) == 70


def test_the_same_arrivals_come_sooner_at_a_higher_rate():
    times = unit_arrivals(4.0, 2000, 1)
    assert list(times) == sorted(times)
    assert times[-1] / len(times) == pytest.approx(1.0, rel=0.15)


@pytest.mark.parametrize("shape", list(TrafficShape))
def test_more_clips_fewer_replicas_and_longer_clips_never_wait_less(shape):
    def p95(per_day=3000, service=60.0, replicas=6):
        return latency_percentile(traffic_of(per_day, shape), service, replicas, 0.95)

    assert p95(2000) <= p95(3000) <= p95(4000)
    assert p95(replicas=8) <= p95(replicas=7) <= p95(replicas=6)
    assert p95(service=50) - 50 <= p95(service=60) - 60 + 1e-9


def test_days_have_the_volume_and_the_quiet_hours_of_the_traffic():
    traffic = traffic_of(1000, TrafficShape.BUSINESS)
    times = day_arrivals(traffic, 4, seed=1)
    assert len(times) == pytest.approx(4000, rel=0.1)
    assert {int(time // 3600) % 24 for time in times} == set(range(8, 18))


def test_recorded_arrivals_are_simulated_as_they_came():
    traffic = recorded_traffic([100, 100, 100, 4000, 8000])
    assert traffic.given == (0, 0, 0, 3900, 7900)
    assert traffic.peak_rate * 3600 == pytest.approx(3)
    assert latency_percentile(traffic, 60, 1, 0.99) == 180


@pytest.mark.parametrize("batch", [1.0, 4.0])
@pytest.mark.parametrize("load", [0.3, 3, 20, 60])
@pytest.mark.parametrize("slack", [1.05, 1.6, 4])
def test_the_formulas_size_a_fleet_within_a_quarter_of_the_simulation(batch, load, slack):
    traffic = Traffic(load / 60 * 86_400, 24, 1, batch)
    demand = Demand(traffic, 60, 60, 60 * slack)
    screened, simulated = (fewest_replicas(demand, 0.95, is_simulated=exact) for exact in (False, True))
    assert abs(screened - simulated) <= max(1, math.ceil(0.25 * simulated))


@pytest.mark.parametrize("replicas", [1, 3, 17])
def test_the_recursion_of_a_fixed_fleet_is_the_simulation(replicas):
    arrivals = [time / 0.05 for time in unit_arrivals(4.0, 1500, 3)]
    whole = simulate(arrivals, 45.0, Operation(replicas, replicas)).latencies
    assert fixed_fleet_latencies(arrivals, 45.0, replicas) == pytest.approx(whole)


def test_a_clip_that_waits_takes_the_first_replica_that_is_free_even_if_it_was_started_later():
    fleet = Operation(0, 2, start_seconds=10, waiting_per_replica=2)
    outcome = simulate([0, 1, 2], 100, fleet)
    assert outcome.latencies == (
        110,
        111,
        208,
    )  # the second clip starts on the replica that the third one started
