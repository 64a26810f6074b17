"""Fleet size, warm replicas, cold starts and tenant isolation."""

import pytest

from filmgate.catalog.gpus import GIB
from filmgate.planner.fleet.sizing import cold_starts, isolation_levels, size_fleet
from filmgate.planner.fleet.traffic import TrafficShape, traffic_of

STEADY = traffic_of(500, TrafficShape.STEADY)


def test_a_fleet_meets_the_slo_at_p95_and_states_the_replicas_for_p99():
    fleet = size_fleet(STEADY, 60, 90, 1, 1)
    assert fleet.latency_p95 <= 90
    assert fleet.replicas_p99 >= fleet.replicas
    assert size_fleet(STEADY, 60, 90, 1, 1).utilisation == pytest.approx(500 / 86400 * 60 / fleet.replicas)


def test_no_fleet_exists_when_the_service_time_exceeds_the_slo():
    assert size_fleet(STEADY, 100, 90, 1, 1) is None


@pytest.mark.parametrize("shape", [TrafficShape.BUSINESS, TrafficShape.BURSTY])
def test_uneven_traffic_needs_more_replicas_than_steady(shape):
    even = size_fleet(STEADY, 60, 90, 1, 1).replicas
    assert size_fleet(traffic_of(500, shape), 60, 90, 1, 1).replicas > even


def test_replicas_share_an_instance():
    fleet = size_fleet(traffic_of(20_000, TrafficShape.STEADY), 60, 90, 1, 8)
    assert fleet.instances == -(-fleet.replicas // 8)


def test_outside_business_hours_one_replica_is_warm_or_none_without_an_slo():
    assert size_fleet(traffic_of(500, TrafficShape.BUSINESS), 60, 90, 1, 1).warm_replicas == 1
    assert size_fleet(traffic_of(500, TrafficShape.BUSINESS), 60, None, 1, 1).warm_replicas == 0


def test_a_cold_start_over_a_slow_network_takes_longer_than_from_memory(catalog):
    starts = {s.source: s for s in cold_starts(40e9, catalog.instance("g6e.xlarge"), catalog.gpu("L40S"))}
    network, memory = starts["object store over the network"], starts["host memory, process restart"]
    assert network.load_seconds == pytest.approx(40e9 / (2.5e9 / 8))
    assert memory.total_seconds < 5 < network.total_seconds


def test_mig_isolates_tenants_if_the_gpu_has_it_and_the_work_fits_a_slice(catalog):
    pro, ada = catalog.gpu("RTX-PRO-6000-BSE"), catalog.gpu("L40S")
    levels = {w.level: w for w in isolation_levels(pro, catalog.instance("g7e.2xlarge"), 20 * GIB)}
    assert levels["MIG slice"].is_possible
    assert levels["MIG slice"].gpus_per_tenant == 0.25
    big = {w.level: w for w in isolation_levels(pro, None, 40 * GIB)}
    assert not big["MIG slice"].is_possible
    none = {w.level: w for w in isolation_levels(ada, None, 1 * GIB)}
    assert none["MIG slice"].reason == "L40S has no MIG"
