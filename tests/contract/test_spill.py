"""The spill on every database: only jobs that would be late move, and only when the provider helps."""

from dataclasses import replace

import pytest

from filmgate.errors import ProviderThrottled
from filmgate.jobs import JobState, ManagedPolicy, Route, RouteReason, Routing, TenantId, WorkerId
from filmgate.providers.breaker import Breaker
from filmgate.providers.circuit import Outcome, Phase
from filmgate.providers.quotes import ProviderQuotes
from filmgate.scheduling.base import Move
from filmgate.scheduling.forecast import LiveForecast
from filmgate.scheduling.router import Router
from filmgate.scheduling.spill import Spiller, return_to_gpu
from filmgate.scheduling.workers import WorkerRegistry, WorkerStatus
from filmgate.settings import RoutingSettings
from filmgate.tenants.base import Tenant
from filmgate.tenants.registry import TenantRegistry
from tests.fake_provider import MODEL, FakeProvider
from tests.tickets import make_offer, make_ticket

SETTINGS = RoutingSettings(open_seconds=10.0)
ALLOWED = ManagedPolicy(is_allowed=True)
ACME, BANK = TenantId("acme"), TenantId("bank")
THROTTLED = Outcome.of(ProviderThrottled("slow down"), 0.1)
GPU = WorkerStatus(WorkerId("worker-1"), Route.GPU, ("flipbook",))
MANAGED = WorkerStatus(WorkerId("managed-1"), Route.MANAGED, ("flipbook",), capacity=20)


class Scene:
    """A queue, a provider, and the spill between them."""

    def __init__(self, bench):
        self.bench, self.provider = bench, FakeProvider()
        self.breaker = Breaker(bench.database, "elsewhere", SETTINGS, chance=lambda: 1.0)
        quotes = ProviderQuotes(self.provider, self.breaker, clock=lambda: bench.clocks.steady)
        self.router = Router(quotes, SETTINGS)
        self.workers = WorkerRegistry(bench.database)
        self.tenants = TenantRegistry(bench.database)
        self.tenants.add(Tenant(ACME, managed=ALLOWED))
        self.spiller = self.open_spiller()

    def open_spiller(self):
        """A spill of a process that has run long enough to know its workers."""
        times = iter([0.0])
        live = LiveForecast(self.bench.reader, clock=lambda: next(times, 1e6 + self.bench.clocks.steady))
        return Spiller(self.router, self.bench.queue, self.bench.reader, live, self.tenants)

    def enqueue(self, count, tenant="acme", **fields):
        return [self.bench.queue.enqueue(make_ticket(tenant, **fields)) for _ in range(count)]

    def spill(self, *alive):
        """One pass while these workers are alive."""
        for worker in (GPU, MANAGED):
            if worker in (alive or (GPU, MANAGED)):
                self.workers.heartbeat(worker)
            else:
                self.workers.leave(worker.worker_id)
        return self.spiller.run()

    def find(self, job):
        return self.bench.reader.find(job.tenant_id, job.id)

    def routes(self, jobs):
        return [self.find(job).route for job in jobs]

    def reasons(self, jobs):
        return [self.find(job).routing.reason for job in jobs]


@pytest.fixture
def scene(bench):
    return Scene(bench)


def test_only_jobs_that_would_be_late_move(scene):
    jobs = scene.enqueue(10, gpu_seconds=15.0)
    # With a safety factor of 1.2, five jobs of 15 s fit into 90 s.
    assert scene.spill() == 5
    assert scene.routes(jobs) == [Route.GPU] * 5 + [Route.MANAGED] * 5
    assert scene.reasons(jobs) == [RouteReason.DEFAULT] * 5 + [RouteReason.DEADLINE] * 5
    assert scene.find(jobs[-1]).routing.provider == "elsewhere"
    assert scene.spill() == 0


def test_without_a_provider_jobs_return_unless_they_are_at_one_or_a_managed_worker_is_alive(scene):
    """The provider was disabled: its jobs would wait for ever."""
    queue, reader = scene.bench.queue, scene.bench.reader
    waiting, leased = (queue.enqueue(replace(make_ticket(), route=Route.MANAGED)) for _ in range(2))
    scene.workers.heartbeat(MANAGED)
    assert return_to_gpu(queue, reader) == 0
    scene.workers.leave(MANAGED.worker_id)
    lease = queue.lease(make_offer(route=Route.MANAGED))
    assert return_to_gpu(queue, reader) == 1
    moved, kept = sorted((waiting, leased), key=lambda job: job.id == lease.job.id)
    assert scene.routes([moved, kept]) == [Route.GPU, Route.MANAGED]
    assert queue.lease(make_offer()).job.id == moved.id
    assert return_to_gpu(queue, reader) == 0


def test_specs_are_read_only_when_a_job_would_be_late(scene, monkeypatch):
    read, kinds = scene.bench.reader.snapshot, []

    def snapshot(*, has_specs=False, **options):
        kinds.append(has_specs)
        return read(has_specs=has_specs, **options)

    monkeypatch.setattr(scene.bench.reader, "snapshot", snapshot)
    scene.enqueue(3, gpu_seconds=10.0)
    assert (scene.spill(), kinds) == (0, [False])
    scene.enqueue(9, gpu_seconds=10.0)
    scene.spill()
    assert kinds == [False, False, True]


def test_jobs_of_a_tenant_that_allows_no_provider_stay_and_have_the_reason(scene):
    scene.tenants.add(Tenant(BANK))
    jobs = scene.enqueue(3, "bank", gpu_seconds=80.0)
    assert scene.spill() == 0
    assert scene.reasons(jobs) == [RouteReason.POLICY] * 3
    assert "allows no managed provider" in scene.find(jobs[2]).routing.detail


def test_jobs_stay_when_the_provider_is_slower_and_the_reason_is_written_once(scene):
    scene.provider.model = replace(MODEL, expected_seconds=3000.0)
    jobs = scene.enqueue(3, gpu_seconds=80.0)
    assert scene.spill() == 0
    assert scene.reasons(jobs) == [RouteReason.PROVIDER_SLOWER] * 3
    before = scene.find(jobs[2])
    scene.bench.clocks.pass_time(1)
    scene.spill()
    assert scene.find(jobs[2]) == before


def test_an_old_job_moves_although_it_has_missed_its_deadline(scene):
    scene.provider.model = replace(MODEL, expected_seconds=85.0)
    jobs = scene.enqueue(4, gpu_seconds=60.0)
    scene.spill()
    assert scene.reasons(jobs[2:]) == [RouteReason.TOO_LATE] * 2
    scene.bench.clocks.pass_time(125)
    assert scene.spill() > 0
    assert scene.reasons(jobs[3:]) == [RouteReason.AGE]


def test_all_jobs_move_while_no_gpu_worker_is_alive(scene):
    jobs = scene.enqueue(3, gpu_seconds=1.0)
    assert scene.spill(MANAGED) == 3
    assert set(scene.routes(jobs)) == {Route.MANAGED}
    assert "no GPU worker is alive" in scene.find(jobs[0]).routing.detail
    late = scene.enqueue(2, gpu_seconds=1.0)
    assert scene.spill() == 0
    assert set(scene.routes(late)) == {Route.GPU}


def test_running_jobs_do_not_move(scene):
    (job,) = scene.enqueue(1, gpu_seconds=500.0)
    lease = scene.bench.queue.lease(make_offer())
    scene.bench.clocks.pass_time(200)
    scene.spill()
    assert scene.find(job).route is Route.GPU
    assert lease.job.id == job.id


def test_a_job_that_lost_its_worker_moves_when_no_other_can_take_it(scene):
    """A zone without GPUs hands its interrupted jobs to the other zone."""
    jobs = scene.enqueue(2, gpu_seconds=1.0)
    scene.bench.queue.lease(make_offer())
    assert scene.spill(MANAGED) == 1, "the lease has not ended"
    scene.bench.clocks.pass_time(scene.bench.settings.lease_seconds + 1)
    assert scene.spill() == 0, "a live worker takes it over"
    assert scene.spill(MANAGED) == 1
    assert scene.routes(jobs) == [Route.MANAGED] * 2
    assert scene.find(jobs[0]).state is JobState.QUEUED
    assert scene.spill(MANAGED) == 0


def test_a_lost_job_of_a_tenant_that_allows_no_provider_waits_for_a_gpu_worker(scene):
    scene.tenants.add(Tenant(BANK))
    (job,) = scene.enqueue(1, "bank", gpu_seconds=1.0)
    scene.bench.queue.lease(make_offer())
    scene.bench.clocks.pass_time(scene.bench.settings.lease_seconds + 1)
    assert scene.spill(MANAGED) == 0
    assert (scene.find(job).route, scene.find(job).state) == (Route.GPU, JobState.RUNNING)


def test_no_more_jobs_move_than_the_provider_finishes_in_time(scene):
    scene.provider.model = replace(MODEL, max_concurrent=2, expected_seconds=30.0)
    jobs = scene.enqueue(20, gpu_seconds=60.0)
    # With a safety factor of 1.2, two rounds of 30 s fit into 90 s.
    assert scene.spill(MANAGED) == 4
    assert scene.spill(MANAGED) == 0
    assert scene.reasons(jobs).count(RouteReason.TOO_LATE) == 16


def test_a_returned_job_does_not_move_again(scene):
    (job,) = scene.enqueue(1)
    scene.bench.queue.reroute([Move(ACME, job.id, Route.GPU, Routing(RouteReason.RETURNED, "refused"))])
    scene.bench.clocks.pass_time(200)
    assert scene.spill(MANAGED) == 0
    assert scene.find(job).routing.reason is RouteReason.RETURNED


def test_jobs_return_when_the_provider_throttles_every_call(scene):
    jobs = scene.enqueue(6)
    assert scene.spill(MANAGED) == 6
    for _ in range(5):
        scene.breaker.record(THROTTLED, scene.breaker.admit())
    assert scene.spill(MANAGED) == 6
    assert set(scene.routes(jobs)) == {Route.GPU}
    assert set(scene.reasons(jobs)) == {RouteReason.PROVIDER_UNHEALTHY}
    assert scene.spill(MANAGED) == 0


def test_one_job_at_a_time_probes_an_unhealthy_provider(scene):
    jobs = scene.enqueue(6, slo_seconds=900.0)
    for _ in range(5):
        scene.breaker.record(THROTTLED, scene.breaker.admit())
    assert scene.spill(MANAGED) == 0
    for rest in (10.0, 20.0):
        scene.bench.clocks.pass_time(rest)
        assert scene.spill(MANAGED) == 1
        assert scene.spill(MANAGED) == 0
        assert scene.routes(jobs).count(Route.MANAGED) == 1
        scene.breaker.record(THROTTLED, scene.breaker.admit())
        assert scene.spill(MANAGED) == 1  # the probe returns
    scene.bench.clocks.pass_time(40.0)
    assert scene.spill(MANAGED) == 1
    scene.breaker.record(Outcome.of(None, 0.2), scene.breaker.admit())
    assert scene.breaker.health().phase is Phase.CLOSED
    assert scene.spill(MANAGED) == 5


def test_jobs_stay_or_return_while_no_managed_worker_is_alive(scene):
    jobs = scene.enqueue(3, gpu_seconds=80.0)
    assert scene.spill(MANAGED) == 3
    assert scene.spill(GPU) == 3
    assert set(scene.reasons(jobs)) == {RouteReason.PROVIDER_UNHEALTHY}
    assert "no live managed worker serves the model" in scene.find(jobs[0]).routing.detail
    assert scene.spill(GPU) == 0
    assert scene.spill(MANAGED) == 3


def test_jobs_that_no_worker_serves_delay_no_other_job(scene):
    scene.tenants.add(Tenant(BANK))
    scene.enqueue(5, "bank", gpu_seconds=500.0, model="wan")
    jobs = scene.enqueue(2, gpu_seconds=10.0)
    assert scene.spill() == 0
    assert scene.reasons(jobs) == [RouteReason.DEFAULT] * 2


def test_two_replicas_move_a_job_once(scene, bench):
    jobs = scene.enqueue(5)
    assert [scene.spill(MANAGED), scene.open_spiller().run()] == [5, 0]
    assert [len(bench.reader.events(ACME, job.id)) for job in jobs] == [1] * 5


def test_a_moved_job_can_be_leased_and_cancelled_as_usual(scene, bench):
    (job,) = scene.enqueue(1)
    scene.spill(MANAGED)
    assert bench.queue.lease(make_offer("m", route=Route.MANAGED)).job.id == job.id
    assert bench.queue.cancel(ACME, job.id).state is JobState.RUNNING


def test_a_process_that_has_just_started_expects_its_workers(scene, bench):
    live = LiveForecast(bench.reader, clock=lambda: 0.0)
    fresh = Spiller(scene.router, bench.queue, bench.reader, live, scene.tenants)
    scene.enqueue(2, gpu_seconds=1.0)
    assert fresh.run() == 0
