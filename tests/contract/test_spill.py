"""The spill, on both databases: what would be late leaves while that helps, everything else stays."""

from dataclasses import replace

import pytest

from filmgate.errors import ProviderThrottled
from filmgate.jobs import JobState, ManagedPolicy, Route, RouteReason, Routing, TenantId
from filmgate.providers.breaker import Breaker
from filmgate.providers.circuit import Outcome, Phase
from filmgate.scheduling.router import Router
from filmgate.scheduling.spill import Spiller
from filmgate.scheduling.waiting import Move
from filmgate.settings import RoutingSettings
from filmgate.tenants import open_tenants
from filmgate.tenants.base import Tenant
from tests.fake_provider import OFFER, FakeProvider
from tests.tickets import make_offer, make_ticket

SETTINGS = RoutingSettings(open_seconds=10.0)
ALLOWED = ManagedPolicy(is_allowed=True)
ACME = TenantId("acme")
THROTTLED = Outcome.of(ProviderThrottled("slow down"), 0.1)


# It has asked for work, so it is heard of; it serves no model of these tests, so it takes none of their jobs.
IDLE_ELSEWHERE = make_offer("managed", models=("another",), route=Route.MANAGED)


class Scene:
    """A queue, a provider, and the spill between them."""

    def __init__(self, bench):
        self.bench, self.provider = bench, FakeProvider()
        self.breaker = Breaker(bench.database, "elsewhere", SETTINGS, chance=lambda: 1.0)
        self.router = Router(self.provider, self.breaker, SETTINGS, gpus=1, clock=lambda: bench.clocks.steady)
        self.tenants = open_tenants(bench.database)
        self.tenants.add(Tenant(ACME, managed=ALLOWED))
        self.spiller = Spiller(self.router, bench.queue, bench.reader, self.tenants)

    def enqueue(self, count, tenant="acme", **fields):
        return [self.bench.queue.enqueue(make_ticket(tenant, **fields)) for _ in range(count)]

    def look(self):
        """One look, with a worker of the managed route around."""
        self.bench.queue.lease(IDLE_ELSEWHERE)
        return self.spiller.look()

    def worker_asks(self):
        """A GPU worker that is alive and takes the next job."""
        return self.bench.queue.lease(make_offer())

    def find(self, job):
        return self.bench.reader.find(job.tenant_id, job.id)

    def routes(self, jobs):
        return [self.find(job).route for job in jobs]

    def reasons(self, jobs):
        return [self.find(job).routing.reason for job in jobs]


@pytest.fixture
def scene(bench):
    return Scene(bench)


def test_what_will_be_in_time_stays_and_only_the_rest_leaves(scene):
    scene.worker_asks()
    jobs = scene.enqueue(10, gpu_seconds=15.0)
    # 90 s at a safety of 1.2 are five jobs of 15 s one after the other.
    assert scene.look() == 5
    assert scene.routes(jobs) == [Route.GPU] * 5 + [Route.MANAGED] * 5
    assert scene.reasons(jobs) == [RouteReason.DEFAULT] * 5 + [RouteReason.DEADLINE] * 5
    assert scene.find(jobs[-1]).routing.provider == "elsewhere"
    assert scene.look() == 0


def test_of_a_quiet_queue_only_the_first_job_is_read(scene, monkeypatch):
    scene.worker_asks()
    scene.enqueue(3, gpu_seconds=10.0)
    read, limits = scene.bench.reader.waiting, []

    def watched(route, *, limit=20_000):
        limits.append(limit)
        return read(route, limit=limit)

    monkeypatch.setattr(scene.bench.reader, "waiting", watched)
    assert scene.look() == 0
    assert limits == [1]
    scene.enqueue(9, gpu_seconds=10.0)
    scene.look()
    assert limits == [1, 1, 20_000]


def test_a_tenant_that_allows_nothing_keeps_its_jobs_and_learns_why(scene):
    scene.tenants.add(Tenant(TenantId("bank")))
    scene.worker_asks()
    jobs = scene.enqueue(3, "bank", gpu_seconds=80.0)
    assert scene.look() == 0
    assert scene.reasons(jobs) == [RouteReason.POLICY] * 3
    assert "allows no managed provider" in scene.find(jobs[2]).routing.detail


def test_where_the_provider_is_worse_than_waiting_jobs_stay_and_say_so_once(scene):
    scene.provider.offer = replace(OFFER, expected_seconds=3000.0)
    scene.worker_asks()
    jobs = scene.enqueue(3, gpu_seconds=80.0)
    assert scene.look() == 0
    assert scene.reasons(jobs) == [RouteReason.PROVIDER_SLOWER] * 3
    before = scene.find(jobs[2])
    scene.bench.clocks.pass_time(1)
    scene.look()
    assert scene.find(jobs[2]) == before


def test_an_old_job_leaves_even_though_its_deadline_is_lost(scene):
    scene.provider.offer = replace(OFFER, expected_seconds=85.0)
    scene.worker_asks()
    jobs = scene.enqueue(4, gpu_seconds=60.0)
    scene.look()
    assert scene.reasons(jobs[2:]) == [RouteReason.TOO_LATE] * 2
    for _ in range(5):
        scene.bench.clocks.pass_time(25)
        scene.worker_asks()
    assert scene.look() > 0
    assert scene.reasons(jobs[3:]) == [RouteReason.AGE]


def test_with_the_worker_gone_everything_leaves_and_new_work_comes_home_with_it(scene):
    lease = scene.worker_asks()
    assert lease is None
    jobs = scene.enqueue(3, gpu_seconds=1.0)
    scene.bench.clocks.pass_time(31)
    assert scene.look() == 3
    assert set(scene.routes(jobs)) == {Route.MANAGED}
    assert "no GPU worker is alive" in scene.find(jobs[0]).routing.detail
    scene.worker_asks()
    late = scene.enqueue(2, gpu_seconds=1.0)
    assert scene.look() == 0
    assert set(scene.routes(late)) == {Route.GPU}


def test_running_jobs_are_never_touched(scene):
    (job,) = scene.enqueue(1, gpu_seconds=500.0)
    lease = scene.worker_asks()
    scene.bench.clocks.pass_time(200)
    scene.look()
    assert scene.find(job).route is Route.GPU
    assert lease.job.id == job.id


def test_no_more_leaves_than_the_provider_can_make_in_time(scene):
    scene.provider.offer = replace(OFFER, max_concurrent=2, expected_seconds=30.0)
    scene.bench.clocks.pass_time(31)
    jobs = scene.enqueue(20, gpu_seconds=60.0)
    # Two rounds of 30 s fit into 90 s at a safety of 1.2.
    assert scene.look() == 4
    assert scene.look() == 0
    assert scene.reasons(jobs).count(RouteReason.TOO_LATE) == 16


def test_a_returned_job_is_not_sent_away_again(scene):
    scene.bench.clocks.pass_time(31)
    (job,) = scene.enqueue(1)
    scene.bench.queue.reroute([Move(ACME, job.id, Route.GPU, Routing(RouteReason.RETURNED, "refused"))])
    scene.bench.clocks.pass_time(200)
    assert scene.look() == 0
    assert scene.find(job).routing.reason is RouteReason.RETURNED


def test_a_provider_that_throttles_everything_is_left_alone_and_work_waits_at_home(scene):
    scene.bench.clocks.pass_time(31)
    jobs = scene.enqueue(6)
    assert scene.look() == 6
    for _ in range(5):
        scene.breaker.record(THROTTLED, scene.breaker.admit())
    assert scene.look() == 6
    assert set(scene.routes(jobs)) == {Route.GPU}
    assert set(scene.reasons(jobs)) == {RouteReason.PROVIDER_UNHEALTHY}
    assert scene.look() == 0


def test_then_one_job_at_a_time_tries_it_and_the_rest_follows_when_it_is_well(scene):
    scene.bench.clocks.pass_time(31)
    jobs = scene.enqueue(6, slo_seconds=900.0)
    for _ in range(5):
        scene.breaker.record(THROTTLED, scene.breaker.admit())
    assert scene.look() == 0
    for rest in (10.0, 20.0):
        scene.bench.clocks.pass_time(rest)
        assert scene.look() == 1
        assert scene.look() == 0
        assert scene.routes(jobs).count(Route.MANAGED) == 1
        scene.breaker.record(THROTTLED, scene.breaker.admit())
        assert scene.look() == 1  # the scout comes home
    scene.bench.clocks.pass_time(40.0)
    assert scene.look() == 1
    scene.breaker.record(Outcome.of(None, 0.2), scene.breaker.admit())
    assert scene.breaker.health().phase is Phase.CLOSED
    assert scene.look() == 5


def test_without_a_worker_for_the_managed_route_nothing_leaves_and_what_left_returns(scene):
    scene.bench.clocks.pass_time(31)
    jobs = scene.enqueue(3)
    assert scene.look() == 3
    scene.bench.clocks.pass_time(31)
    assert scene.spiller.look() == 3
    assert set(scene.reasons(jobs)) == {RouteReason.PROVIDER_UNHEALTHY}
    assert "no worker of the managed route is alive" in scene.find(jobs[0]).routing.detail
    assert scene.spiller.look() == 0
    assert scene.look() == 3


def test_what_no_worker_serves_holds_nobody_up(scene):
    scene.bench.clocks.pass_time(31)
    scene.worker_asks()
    scene.tenants.add(Tenant(TenantId("bank")))
    scene.enqueue(5, "bank", gpu_seconds=500.0, model="wan")
    jobs = scene.enqueue(2, gpu_seconds=10.0)
    assert scene.look() == 0
    assert scene.reasons(jobs) == [RouteReason.DEFAULT] * 2


def test_two_replicas_move_a_job_once(scene, bench):
    twin = Spiller(scene.router, bench.queue, bench.reader, scene.tenants)
    bench.clocks.pass_time(31)
    jobs = scene.enqueue(5)
    assert [scene.look(), twin.look()] == [5, 0]
    assert [len(bench.reader.events(ACME, job.id)) for job in jobs] == [1] * 5


def test_a_spilled_job_ends_like_any_other(scene, bench):
    bench.clocks.pass_time(31)
    (job,) = scene.enqueue(1)
    scene.look()
    assert bench.queue.lease(make_offer("m", route=Route.MANAGED)).job.id == job.id
    assert bench.queue.cancel(ACME, job.id).state is JobState.RUNNING
