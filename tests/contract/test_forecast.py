"""The forecast agrees with what the queue really does, on every database."""

import heapq
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from math import inf

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from filmgate.jobs import Clip, Progress, Route, Share, Stage, TenantId, WorkerId
from filmgate.scheduling.base import AttemptResult
from filmgate.scheduling.forecast import LiveForecast, forecast, to_arrival
from filmgate.scheduling.workers import WorkerRegistry, WorkerStatus
from filmgate.tenants.base import Tenant
from filmgate.tenants.registry import TenantRegistry
from tests.conftest import FUZZ
from tests.tickets import make_offer, make_ticket

CLIP = Clip("clip-1.mp4", 1000, "ab" * 32)
NUMBERS = count()

TENANTS = st.lists(
    st.builds(Share, weight=st.sampled_from([0.5, 1.0, 3.0]), max_running=st.sampled_from([None, 1, 2])),
    min_size=1,
    max_size=4,
)
JOBS = st.lists(
    st.tuples(
        st.integers(0, 3),  # tenant
        st.integers(1, 60),  # GPU-seconds
        st.sampled_from(["wan", "flipbook"]),
        st.sampled_from([30.0, 90.0, 600.0]),  # SLO
    ),
    min_size=1,
    max_size=25,
)
MODELS = st.sampled_from([("wan",), ("flipbook",), ("wan", "flipbook")])
# The numbers of the tenants that the worker serves alone; most workers are shared.
OWN = st.sampled_from([(), (), (), (0,), (1,), (0, 2)])
WORKERS = st.lists(st.tuples(MODELS, OWN), min_size=1, max_size=4)
DEDICATED = st.sets(st.integers(0, 3), max_size=2)


@dataclass(frozen=True)
class Site:
    """The tenants of one example, and its workers."""

    prefix: str
    dedicated: set[int]
    workers: list[tuple[tuple[str, ...], tuple[int, ...]]]

    def tenant(self, number):
        return TenantId(f"{self.prefix}-{number}")

    def offer(self, number):
        models, own = self.workers[number]
        return make_offer(f"worker-{number}", models=models, tenants=tuple(map(self.tenant, own)))

    def status(self, number):
        offer = self.offer(number)
        return WorkerStatus(offer.worker_id, Route.GPU, offer.models, tenants=offer.tenants)

    def serves(self, worker, tenant, model):
        """The rule for dedicated tenants, written again."""
        models, own = self.workers[worker]
        return model in models and (tenant in own if own else tenant not in self.dedicated)


class Simulation:
    """Workers that lease and complete real jobs; every job takes exactly its predicted seconds."""

    def __init__(self, bench, site):
        self.bench, self.site = bench, site
        self.leases = {}
        self.starts = {}
        self.clock_start = bench.clocks.steady

    @property
    def now(self):
        return self.bench.clocks.steady - self.clock_start

    def run(self, free_at):
        """Work until the queue is empty. `free_at` maps workers to the moments at which they are free."""
        free = [(at, number) for number, at in free_at.items()]
        heapq.heapify(free)
        while free:
            at, number = heapq.heappop(free)
            self.advance_to(at)
            self.complete_due()
            ends_at = self.lease(number)
            if ends_at is None:
                ends_at = min((end for end, _ in self.leases.values() if end > at), default=inf)
            if ends_at < inf:
                heapq.heappush(free, (ends_at, number))

    def lease(self, number):
        lease = self.bench.queue.lease(self.site.offer(number))
        if lease is None:
            return None
        tenant = int(lease.job.tenant_id.rpartition("-")[2])
        assert self.site.serves(number, tenant, lease.job.spec.model)
        self.starts[lease.job.id] = self.now
        ends_at = self.now + lease.job.predicted.gpu_seconds
        self.leases[number] = (ends_at, lease)
        return ends_at

    def complete_due(self):
        for number, (ends_at, lease) in list(self.leases.items()):
            if ends_at <= self.now:
                del self.leases[number]
                self.bench.queue.complete(lease, AttemptResult(CLIP, lease.job.predicted))

    def advance_to(self, at):
        while self.now < at:
            self.bench.clocks.pass_time(min(20.0, at - self.now))
            for _, lease in self.leases.values():
                self.bench.queue.heartbeat(lease)


@settings(max_examples=15 * FUZZ, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TENANTS, DEDICATED, JOBS, WORKERS, st.integers(0, 4), st.integers(0, 20))
def test_every_job_starts_when_the_forecast_says(bench, shares, dedicated, jobs, workers, running, passed):
    """Shared workers never lease a dedicated tenant's job; workers with tenants lease only theirs."""
    site = Site(f"t{next(NUMBERS)}", dedicated, workers)
    with emptied(bench, site):
        for number in dedicated:
            TenantRegistry(bench.database).add(Tenant(site.tenant(number), is_dedicated=True))
        enqueue(bench, shares, site, jobs)
        real = Simulation(bench, site)
        busy = {number: end for number in range(min(running, len(workers))) if (end := real.lease(number))}
        real.advance_to(min([passed, *busy.values()]))
        for number in range(len(workers)):
            WorkerRegistry(bench.database).heartbeat(site.status(number))
        started = set(real.starts)

        began, slots = real.now, forecast(bench.reader.snapshot()).slots
        real.run(dict.fromkeys(range(len(workers)), began) | busy)

        expected = {job_id: began + slot.starts_in for job_id, slot in slots.items() if slot.starts_in < inf}
        actual = {job_id: at for job_id, at in real.starts.items() if job_id not in started}
        assert actual == pytest.approx(expected)
        unserved = [slot for slot in slots.values() if slot.starts_in == inf]
        assert len(unserved) == sum(
            not any(site.serves(worker, tenant % len(shares), model) for worker in range(len(workers)))
            for tenant, _, model, _ in jobs
        )


def enqueue(bench, shares, site, jobs):
    for tenant, seconds, model, slo in jobs:
        number = tenant % len(shares)
        ticket = make_ticket(
            site.tenant(number), gpu_seconds=seconds, share=shares[number], model=model, slo_seconds=slo
        )
        bench.queue.enqueue(ticket)


@contextmanager
def emptied(bench, site):
    """Leaves no jobs and no workers to the next example."""
    try:
        yield
    finally:
        for job in bench.reader.snapshot().queued:
            bench.queue.cancel(job.tenant_id, job.job_id)
        bench.clocks.pass_time(3600)
        tenants = tuple(map(site.tenant, range(4)))
        while bench.queue.lease(make_offer(models=("wan", "flipbook"), tenants=tenants)) is not None:
            pass
        for number in range(len(site.workers)):
            WorkerRegistry(bench.database).leave(WorkerId(f"worker-{number}"))


def test_a_job_enqueued_after_the_snapshot_gets_the_slot_it_has_in_the_next(bench):
    registry = WorkerRegistry(bench.database)
    registry.heartbeat(WorkerStatus(WorkerId("worker-1"), Route.GPU, ("flipbook",)))
    for tenant in ("acme", "acme", "globex"):
        bench.queue.enqueue(make_ticket(tenant, gpu_seconds=10))
    live = LiveForecast(bench.reader, clock=lambda: 0.0)
    before = live.get()
    job = bench.queue.enqueue(make_ticket("initech", gpu_seconds=5))
    assert before.arrive(to_arrival(job)).starts_in <= live.refresh().slots[job.id].starts_in
    assert live.slot(job) == live.get().slots[job.id]


def test_a_job_whose_worker_is_gone_waits_again_when_its_lease_has_ended(bench):
    """When a zone dies, its jobs are not shown as running until a worker returns."""
    bench.queue.enqueue(make_ticket("acme", gpu_seconds=10))
    lease = bench.queue.lease(make_offer())
    bench.queue.heartbeat(lease, Progress(Stage.DENOISE, 1, 2, 0.5))
    times = iter([0.0])  # of the start; by 1e6 s later no worker is expected any more
    live = LiveForecast(bench.reader, clock=lambda: next(times, 1e6))
    job = bench.reader.find(lease.job.tenant_id, lease.job.id)
    assert live.slot(job) is None
    bench.clocks.pass_time(3600)
    live.refresh()
    assert live.slot(job).position == 1
    assert live.eta_seconds(job, job.created_at + 3600) is None, "no worker is alive"
    again = bench.queue.lease(make_offer())
    live.refresh()
    assert live.slot(again.job) is None
