"""Fleet size, spare machines, tenants, cold starts and tenant isolation."""

from dataclasses import replace

import pytest

from filmgate.catalog.gpus import GIB
from filmgate.planner.fleet.isolation import isolation_levels
from filmgate.planner.fleet.sizing import MAX_UTILISATION, Demand, Layout, size_fleet
from filmgate.planner.fleet.starts import Start, cold_starts
from filmgate.planner.fleet.traffic import TrafficShape, traffic_of

STEADY = traffic_of(500, TrafficShape.STEADY)
DEMAND = Demand(STEADY, 60, 70, 90)


def test_a_fleet_meets_the_slo_at_p95_and_states_the_replicas_for_p99():
    fleet = size_fleet(DEMAND, Layout())
    assert fleet.latency_p95 <= fleet.worst_p95 <= 90
    assert fleet.replicas_p99 >= fleet.needed_replicas
    assert fleet.utilisation == pytest.approx(500 / 86400 * 60 / fleet.replicas)


def test_no_fleet_exists_when_the_upper_end_of_the_service_time_exceeds_the_slo():
    assert size_fleet(replace(DEMAND, service=80, service_high=91), Layout()) is None


def test_a_target_equal_to_the_service_time_is_met_by_a_fleet_without_waits():
    service = 45.09330362179556
    demand = Demand(traffic_of(30, TrafficShape.STEADY), service, service, service)
    assert size_fleet(demand, Layout()).needed_replicas < 10


@pytest.mark.parametrize("shape", [TrafficShape.BUSINESS, TrafficShape.BURSTY])
def test_uneven_traffic_needs_more_replicas_than_steady(shape):
    even = size_fleet(DEMAND, Layout()).replicas
    assert size_fleet(replace(DEMAND, traffic=traffic_of(500, shape)), Layout()).replicas > even


def test_replicas_share_an_instance_and_a_spare_machine_has_as_many():
    demand = replace(DEMAND, traffic=traffic_of(20_000, TrafficShape.STEADY))
    fleet = size_fleet(demand, Layout(replicas_per_machine=8))
    assert fleet.instances == -(-fleet.needed_replicas // 8) + 1
    assert fleet.replicas == fleet.instances * 8


def test_the_target_is_met_at_the_upper_end_with_a_machine_lost():
    for machines_lost in (0, 1, 2):
        fleet = size_fleet(DEMAND, Layout(spare_machines=machines_lost))
        left = fleet.replicas - machines_lost
        assert left == fleet.needed_replicas
        assert fleet.spare_instances == machines_lost


def test_no_fleet_is_busier_than_the_limit_at_the_upper_end():
    for slo in (90, 600, None):
        demand = replace(DEMAND, traffic=traffic_of(20_000, TrafficShape.STEADY), slo=slo)
        fleet = size_fleet(demand, Layout(spare_machines=0))
        assert demand.traffic.peak_rate * 70 / fleet.needed_replicas <= MAX_UTILISATION


def test_separate_hardware_for_tenants_is_a_number_of_machines():
    shared = size_fleet(DEMAND, Layout(replicas_per_machine=4))
    gpus = size_fleet(DEMAND, Layout(replicas_per_machine=4, pools=5))
    machines = size_fleet(DEMAND, Layout(replicas_per_machine=4, pools=5, is_machine_shared=False))
    assert shared.instances <= gpus.instances < machines.instances
    assert machines.instances == 5 * 2  # each tenant has a machine and a spare one


def test_outside_business_hours_one_machine_is_warm_or_none_without_an_slo():
    business = replace(DEMAND, traffic=traffic_of(500, TrafficShape.BUSINESS))
    assert size_fleet(business, Layout()).warm_instances == 1
    assert size_fleet(replace(business, slo=None), Layout()).warm_instances == 0


def test_a_bare_gpu_starts_on_a_node_that_boots_and_pulls_the_image_too(catalog):
    new, restart = cold_starts(40e9, None, catalog.gpu("H100"))
    assert (new.source, new.boot_seconds, new.image_seconds) == ("object store over 10 Gbit/s", 90, 20)
    assert new.total_seconds == Start.slowest([new, restart]).new_machine == pytest.approx(142)
    assert restart.boot_seconds == 0


def test_a_cold_start_over_a_slow_network_takes_longer_than_from_memory(catalog):
    starts = {s.source: s for s in cold_starts(40e9, catalog.instance("g6e.xlarge"), catalog.gpu("L40S"))}
    network, memory = starts["object store over the network"], starts["host memory, process restart"]
    assert network.load_seconds == pytest.approx(40e9 / (2.5e9 / 8))
    assert memory.total_seconds < 5 < network.total_seconds


def test_a_new_node_also_boots_pulls_its_image_and_compiles(catalog):
    start = cold_starts(40e9, catalog.instance("p5.48xlarge"), catalog.gpu("H100"), build_seconds=26)[0]
    parts = (start.boot_seconds, start.image_seconds, start.load_seconds, start.build_seconds)
    assert min(parts) > 0
    assert start.total_seconds == pytest.approx(sum(parts))


def test_weights_do_not_arrive_at_the_rate_of_efa(catalog):
    instance = catalog.instance("p5.48xlarge")
    start = cold_starts(40e9, instance, catalog.gpu("H100"))[0]
    assert start.load_seconds > 10 * 40e9 / (instance.network_gbps / 8 * 1e9)


def test_mig_isolates_tenants_if_the_gpu_has_it_and_the_work_fits_a_slice(catalog):
    pro, ada = catalog.gpu("RTX-PRO-6000-BSE"), catalog.gpu("L40S")
    levels = {w.level: w for w in isolation_levels(pro, catalog.instance("g7e.2xlarge"), 20 * GIB)}
    assert levels["MIG slice"].is_possible
    assert levels["MIG slice"].gpus_per_tenant == 0.25
    assert "1/4 of the speed" in levels["MIG slice"].reason
    big = {w.level: w for w in isolation_levels(pro, None, 40 * GIB)}
    assert not big["MIG slice"].is_possible
    none = {w.level: w for w in isolation_levels(ada, None, 1 * GIB)}
    assert none["MIG slice"].reason == "L40S has no MIG"


def test_a_slice_that_is_too_slow_for_the_slo_separates_nobody(catalog):
    """Memory alone does not decide: a slice has its share of the arithmetic, too."""
    pro = catalog.gpu("RTX-PRO-6000-BSE")
    for slo, is_possible in ((300, True), (200, False), (None, True)):
        levels = {way.level: way for way in isolation_levels(pro, None, 20 * GIB, 60, slo)}
        assert levels["MIG slice"].is_possible == is_possible
        assert "240 s" in levels["MIG slice"].reason


def test_time_slicing_and_mps_are_named_and_separate_nobody(catalog):
    """Over-provisioning a GPU is possible, and isolates nothing."""
    levels = {way.level: way for way in isolation_levels(catalog.gpu("L40S"), None, GIB)}
    assert not levels["time-slicing"].is_possible
    assert "any number can be scheduled" in levels["time-slicing"].reason
    assert "fault of one ends all" in levels["MPS"].reason
