"""Fleets that start from zero: starts, hours, spare machines, tenants, and KEDA's own decisions."""

from dataclasses import replace
from pathlib import Path

import pytest

from filmgate.planner.fleet.keda import KedaSettings
from filmgate.planner.fleet.replay import Job, Machines, replay
from filmgate.planner.fleet.scaled import (
    KEEP_SECONDS,
    cold_latency,
    confirm_scaled,
    estimated_fleet,
    operation,
    scaled_fleet,
)
from filmgate.planner.fleet.simulation import Operation, day_arrivals, simulate
from filmgate.planner.fleet.sizing import Demand, Layout, size_fleet
from filmgate.planner.fleet.starts import Start
from filmgate.planner.fleet.traffic import TrafficShape, recorded_traffic, traffic_of
from filmgate.planner.percentiles import percentile

START = Start(new_machine=170, same_machine=60)
DEMAND = Demand(traffic_of(60, TrafficShape.STEADY), 150, 180, 700)
ALONE = Layout(spare_machines=0)


def test_a_machine_is_paid_from_its_start_until_its_cooldown_and_the_removal_of_the_node():
    fleet = Operation(0, 1, start_seconds=100, cooldown_seconds=300, keep_seconds=600)
    outcome = simulate([0, 10_000], 60, fleet, span_seconds=20_000)
    assert outcome.latencies == (160, 160)
    assert outcome.machine_seconds == outcome.up_seconds == 2 * (100 + 60 + 300 + 600)
    assert (outcome.cold, outcome.span_seconds) == (2, 20_000)


def test_a_replica_comes_back_sooner_while_its_node_is_there():
    fleet = Operation(0, 1, start_seconds=100, keep_seconds=600, restart_seconds=20, activation_seconds=30)
    assert simulate([0, 700, 5000], 60, fleet).latencies == (190, 110, 190)


def test_replicas_share_a_machine_and_it_is_paid_once():
    one, two = (Operation(0, 2, start_seconds=100, replicas_per_machine=size) for size in (1, 2))
    burst = [0.0, 0.0, 0.0]
    apart, together = (simulate(burst, 60, fleet, span_seconds=5000).machine_seconds for fleet in (one, two))
    assert together == 100 + 120 + 300
    assert together < apart == (100 + 60 + 300) + (100 + 120 + 300)


@pytest.mark.parametrize("shape", list(TrafficShape))
def test_a_fleet_meets_its_target_with_cold_starts_at_the_upper_end(shape):
    fleet = scaled_fleet(replace(DEMAND, traffic=traffic_of(60, shape)), Layout(), START)
    assert fleet.is_scaled
    assert fleet.latency_p95 > 150 + START.same_machine
    assert fleet.latency_p95 <= fleet.worst_p95 <= 700
    assert 0 < fleet.cold_share < 1
    assert (fleet.warm_instances, fleet.spare_instances) == (0, 1)


def test_a_clip_that_finds_no_machine_must_meet_the_target_too():
    limit = cold_latency(DEMAND.service_high, START)
    assert scaled_fleet(replace(DEMAND, slo=limit - 1), Layout(), START) is None
    assert scaled_fleet(replace(DEMAND, slo=limit), Layout(), START) is not None


def test_spare_machines_run_while_others_do():
    none, one, two = (scaled_fleet(DEMAND, Layout(spare_machines=spare), START) for spare in (0, 1, 2))
    assert one.machine_hours - none.machine_hours == pytest.approx(none.up_hours)
    assert two.machine_hours - one.machine_hours == pytest.approx(none.up_hours)
    assert (none.instances, one.instances, two.instances) == (
        none.instances,
        none.instances + 1,
        none.instances + 2,
    )


def test_each_tenant_has_machines_of_its_own():
    shared = scaled_fleet(DEMAND, Layout(), START)
    apart = scaled_fleet(DEMAND, Layout(pools=5, is_machine_shared=False), START)
    one = scaled_fleet(replace(DEMAND, traffic=traffic_of(12, TrafficShape.STEADY)), Layout(), START)
    assert apart.machine_hours == pytest.approx(5 * one.machine_hours)
    assert apart.machine_hours > shared.machine_hours
    assert (apart.pools, apart.instances, apart.spare_instances) == (5, 5 * one.instances, 5)


@pytest.mark.parametrize("shape", list(TrafficShape))
def test_more_clips_a_tighter_target_and_separate_tenants_never_need_fewer_hours(shape):
    def hours(per_day=40.0, slo=2000.0, pools=1):
        demand = replace(DEMAND, traffic=traffic_of(per_day, shape), slo=slo)
        return scaled_fleet(demand, Layout(pools=pools, is_machine_shared=False), START).machine_hours

    assert hours(20) < hours(40) < hours(60) < hours(6000)
    assert hours(slo=None) < hours(slo=2000) <= hours(slo=1400) <= hours(slo=900) <= hours(slo=500)
    assert hours(slo=None) <= hours(slo=None, pools=3) <= hours(slo=None, pools=6)


def test_a_run_has_the_clips_of_the_volume():
    """Otherwise its hours would be off by the sampling error of the number of arrivals."""
    for shape in TrafficShape:
        assert len(day_arrivals(traffic_of(400, shape), 2.5, seed=3)) == 1000
        assert max(day_arrivals(traffic_of(400, shape), 2, seed=3)) < 2 * 86_400


def test_a_large_fleet_is_a_multiple_of_its_simulated_part():
    one, many = (
        scaled_fleet(replace(DEMAND, traffic=traffic_of(volume, TrafficShape.STEADY)), ALONE, START)
        for volume in (1500, 4000)
    )
    assert many.machine_hours == pytest.approx(one.machine_hours * 4000 / 1500)
    assert many.latency_p95 == one.latency_p95


def test_recorded_arrivals_are_simulated_as_they_came():
    times = [day * 86_400 + 60.0 * i for day in range(4) for i in range(10)]
    fleet = scaled_fleet(replace(DEMAND, traffic=recorded_traffic(times)), ALONE, START)
    assert fleet.up_hours < 2
    assert fleet.cold_share == pytest.approx(4 / 40)


def test_a_recorded_burst_is_an_hour_in_which_machines_are_removed_and_paid_until_then():
    """The volume of a day is that of an hour, so the paid hours are too."""
    fleet = scaled_fleet(replace(DEMAND, traffic=recorded_traffic([0.0] * 10)), Layout(), START)
    each = (START.new_machine + 150 + 300 + KEEP_SECONDS) / 3600 * 24
    assert fleet.up_hours == pytest.approx(each, rel=0.2)
    assert fleet.machine_hours >= 2 * fleet.up_hours, "one of them is spare"


def test_further_simulations_confirm_the_fleet():
    fleet = scaled_fleet(DEMAND, Layout(), START)
    assert confirm_scaled(DEMAND, Layout(), START, fleet).late_runs == 0
    tight = replace(DEMAND, slo=fleet.latency_p95)
    assert confirm_scaled(tight, Layout(), START, fleet).late_runs > 8


@pytest.mark.parametrize(
    ("shape", "per_day", "service", "slo"),
    [
        (TrafficShape.STEADY, 300, 150, 700),
        (TrafficShape.BUSINESS, 1500, 60, 400),
        (TrafficShape.BURSTY, 300, 150, 700),
    ],
)
def test_the_simulation_agrees_with_the_decisions_of_keda(shape, per_day, service, slo):
    """The chart's polls, windows and limits, sync by sync, with the values that the plan writes."""
    demand = Demand(traffic_of(per_day, shape), service, service * 1.2, slo)
    fleet = scaled_fleet(demand, ALONE, START)
    setting = operation(fleet.needed_replicas, fleet.waiting_per_replica, 1, START)
    arrivals = day_arrivals(demand.traffic, 2, seed=5)[:300]
    outcome = simulate(arrivals, service, setting)
    settings = KedaSettings(
        min_replicas=0,
        max_replicas=setting.max_replicas,
        backlog_seconds_per_worker=setting.waiting_per_replica * service,
    )
    node = START.new_machine - START.same_machine
    jobs = [Job(at, "acme", service) for at in arrivals]
    real = replay(jobs, settings, Machines(node, START.same_machine, KEEP_SECONDS))
    latencies = [start + job.seconds - job.at for start, job in zip(real.starts, jobs, strict=True)]
    assert outcome.machine_seconds / 3600 == pytest.approx(real.gpu_hours, rel=0.15)
    assert percentile(outcome.latencies, 0.95) == pytest.approx(percentile(latencies, 0.95), rel=0.25)


@pytest.mark.parametrize("shape", list(TrafficShape))
@pytest.mark.parametrize(("per_day", "slo"), [(5, 480), (60, 1500), (1000, None)])
def test_the_formula_that_chooses_what_is_simulated_is_near(shape, per_day, slo):
    demand = replace(DEMAND, traffic=traffic_of(per_day, shape), slo=slo)
    warm = size_fleet(demand, Layout(), is_simulated=False)
    estimate, exact = estimated_fleet(demand, Layout(), START, warm), scaled_fleet(demand, Layout(), START)
    assert 0.5 < estimate.machine_hours / exact.machine_hours < 1.8


def test_the_chart_keeps_empty_nodes_and_scales_as_the_simulation_assumes():
    values = (Path(__file__).parents[4] / "deploy/chart/filmgate/values.yaml").read_text()
    keda = KedaSettings()
    assert f"consolidateAfter: {KEEP_SECONDS / 60:.0f}m" in values
    assert f"pollingSeconds: {keda.polling_seconds:.0f}" in values
    assert f"scaleOutSeconds: {keda.scale_out_seconds:.0f}" in values
    assert f"scaleInSeconds: {keda.scale_in_seconds:.0f}" in values
