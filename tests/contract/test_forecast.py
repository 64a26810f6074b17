"""The forecast agrees with what the queue really does, on every database."""

import heapq
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from math import inf

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from filmgate.jobs import (
    Clip,
    Failure,
    ManagedPolicy,
    Progress,
    Reason,
    Route,
    Share,
    Stage,
    TenantId,
    WorkerId,
)
from filmgate.scheduling.base import AttemptFailure, AttemptResult
from filmgate.scheduling.forecast import LiveForecast
from filmgate.scheduling.router import Router
from filmgate.scheduling.routes import ProviderHealth, Quote
from filmgate.scheduling.spill import Spiller
from filmgate.scheduling.workers import WorkerRegistry, WorkerStatus
from filmgate.settings import RoutingSettings
from filmgate.tenants.base import Tenant
from filmgate.tenants.registry import TenantRegistry
from tests.conftest import FUZZ
from tests.tickets import make_offer, make_ticket

ENDS = {
    "crashed": AttemptFailure(Failure(Reason.OUT_OF_MEMORY, "out of GPU memory")),
    "paused": AttemptFailure(Failure(Reason.STORE_FAILED, "away"), uses_attempt=False, retry_seconds=12.0),
}
WAITS = {"crashed": 2.0, "paused": 12.0, "lost": 30.0}
CLIP = Clip("clip-1.mp4", 1000, "ab" * 32)
NUMBERS = count()
MANAGED = WorkerStatus(WorkerId("managed"), Route.MANAGED, ("wan", "flipbook"), capacity=20)

TENANTS = st.lists(
    st.builds(Share, weight=st.sampled_from([0.5, 1.0, 3.0]), max_running=st.sampled_from([None, 1, 2])),
    min_size=1,
    max_size=4,
)
JOB = st.tuples(
    st.integers(0, 3),  # tenant
    st.integers(1, 60),  # GPU-seconds
    st.sampled_from(["wan", "flipbook"]),
    st.sampled_from([30.0, 90.0, 600.0]),  # SLO
)
JOBS = st.lists(JOB, min_size=1, max_size=25)
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

    def add_tenants(self, bench, shares, **fields):
        for number in range(4):
            is_dedicated = number in self.dedicated
            share = shares[number % len(shares)]
            tenant = Tenant(self.tenant(number), share=share, is_dedicated=is_dedicated, **fields)
            TenantRegistry(bench.database).add(tenant)

    def announce(self, bench):
        for number in range(len(self.workers)):
            WorkerRegistry(bench.database).heartbeat(self.status(number))

    def lane(self, job):
        """Jobs of a lane wait for the same workers."""
        number = int(job.tenant_id.rpartition("-")[2])
        is_apart = number in self.dedicated.union(*(own for _, own in self.workers))
        return job.spec.model, number if is_apart else None

    def serves(self, worker, tenant, model):
        """The rule for dedicated tenants, written again."""
        models, own = self.workers[worker]
        return model in models and (tenant in own if own else tenant not in self.dedicated)


class Simulation:
    """Workers that lease and complete real jobs; every job takes exactly its predicted seconds."""

    def __init__(self, bench, site):
        self.bench, self.site = bench, site
        self.leases = {}
        self.due = []  # when jobs that were handed back or lost can be leased again
        self.starts, self.ends, self.lanes = {}, {}, {}
        self.clock_start = bench.clocks.steady

    @property
    def now(self):
        return self.bench.clocks.steady - self.clock_start

    def run(self, free_at):
        """Work until the queue is empty. `free_at` maps workers to the moments at which they are free."""
        moments = [*free_at.values(), *self.due]
        heapq.heapify(moments)
        while moments:
            self.advance_to(heapq.heappop(moments))
            self.complete_due()
            for number, at in free_at.items():
                if at <= self.now and number not in self.leases and (ends_at := self.lease(number)):
                    heapq.heappush(moments, ends_at)

    def give_up(self, how):
        """Lease a job on a worker that hands it back, or dies."""
        tenants = tuple(map(self.site.tenant, range(4)))
        if lease := self.bench.queue.lease(make_offer("gone", models=("wan", "flipbook"), tenants=tenants)):
            if how in ENDS:
                self.bench.queue.fail_attempt(lease, ENDS[how])
            self.due.append(self.now + WAITS[how] + 1 / 1024)  # never at the time at which another job ends
            self.bench.clocks.pass_time(1 / 64)

    def lease(self, number):
        lease = self.bench.queue.lease(self.site.offer(number))
        if lease is None:
            return None
        tenant = int(lease.job.tenant_id.rpartition("-")[2])
        assert self.site.serves(number, tenant, lease.job.spec.model)
        self.starts[lease.job.id] = self.now
        self.lanes[lease.job.id] = self.site.lane(lease.job)
        self.bench.queue.heartbeat(lease, Progress(Stage.DENOISE, 0, 100, 0.0))
        ends_at = self.now + lease.job.predicted.gpu_seconds
        self.leases[number] = (ends_at, lease)
        return ends_at

    def complete_due(self):
        for number, (ends_at, lease) in list(self.leases.items()):
            if ends_at <= self.now:
                del self.leases[number]
                self.ends[lease.job.id] = self.now
                self.bench.queue.complete(lease, AttemptResult(CLIP, lease.job.predicted))

    def advance_to(self, at):
        while self.now < at:
            self.bench.clocks.pass_time(min(20.0, at - self.now))
            for ends_at, lease in self.leases.values():
                done = 1 - (ends_at - self.now) / lease.job.predicted.gpu_seconds
                self.bench.queue.heartbeat(lease, Progress(Stage.DENOISE, 1, 100, done))

    def positions(self, job_ids):
        """The place of each of these jobs in its lane, in the order of the leases."""
        seen = Counter()
        found = {}
        for job_id in job_ids:
            seen[self.lanes[job_id]] += 1
            found[job_id] = seen[self.lanes[job_id]]
        return found


@settings(
    max_examples=15 * FUZZ, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    TENANTS,
    DEDICATED,
    JOBS,
    WORKERS,
    st.lists(st.sampled_from(list(WAITS)), max_size=4),
    st.integers(0, 4),
    st.integers(0, 20),
)
@example(  # the first tenant has had its turn, and waits for the second one's
    [Share(), Share()],
    set(),
    [(0, 5, "wan", 30.0), (1, 10, "wan", 30.0), (1, 10, "wan", 30.0), (0, 5, "wan", 30.0)],
    [(("wan",), ())],
    [],
    1,
    5,
)
@example(  # three jobs of the second tenant for each one of the first
    [Share(weight=1.0), Share(weight=3.0)],
    set(),
    [(tenant, 10, "wan", 600.0) for _ in range(6) for tenant in (0, 1)],
    [(("wan",), ())],
    [],
    0,
    0,
)
@example(  # the second tenant may run one job at a time, on two workers
    [Share(), Share(weight=3.0, max_running=1)],
    set(),
    [(tenant, 10, "wan", 600.0) for _ in range(4) for tenant in (0, 1)],
    [(("wan",), ()), (("wan",), ())],
    [],
    0,
    0,
)
@example(  # a job that was handed back with a pause bypasses no other tenant when the pause is over
    [Share(), Share()],
    set(),
    [(tenant, 10, "wan", 600.0) for _ in range(3) for tenant in (0, 1)],
    [(("wan",), ())],
    ["paused", "paused"],
    0,
    0,
)
@example(  # the second worker waits for the end of a job that starts later, on the first one
    [Share(max_running=1)],
    set(),
    [(0, 1, "wan", 30.0), (0, 1, "flipbook", 30.0)],
    [(("wan",), ()), (("flipbook",), ())],
    ["lost"],
    0,
    0,
)
def test_jobs_start_and_end_as_forecast(bench, shares, dedicated, jobs, workers, gone, leased, passed):
    """Position, ETA and the slot of an arrival, which admission and routing read, against what happens.

    Shared workers never lease a dedicated tenant's job; workers with tenants lease only theirs.
    """
    site = Site(f"t{next(NUMBERS)}", dedicated, workers)
    with emptied(bench, site):
        site.add_tenants(bench, shares)
        accepted = enqueue(bench, shares, site, jobs[:-1])
        real = Simulation(bench, site)
        for how in gone:
            real.give_up(how)
        busy = {number: end for number in range(min(leased, len(workers))) if (end := real.lease(number))}
        real.advance_to(passed)
        real.complete_due()
        busy = {number: end for number, end in busy.items() if end > real.now}
        site.announce(bench)
        began, earlier, real.ends = real.now, set(real.starts), {}

        live = open_live(bench)
        before = live.get()
        (arrived,) = enqueue(bench, shares, site, jobs[-1:])
        slots = live.refresh().slots
        found = [bench.reader.find(job.tenant_id, job.id) for job in [*accepted, arrived]]
        # Until its lease ends, a lost job counts as running.
        still_open = [job for job in found if not job.state.is_final and job.worker_id != "gone"]
        etas = {job.id: live.get().predict(job, bench.clocks.wall)[1] for job in still_open}
        real.run(dict.fromkeys(range(len(workers)), began) | busy)

        starts = {job_id: at - began for job_id, at in real.starts.items() if job_id not in earlier}
        served = {job_id: slot for job_id, slot in slots.items() if slot.starts_in < inf}
        assert starts == pytest.approx({job_id: slot.starts_in for job_id, slot in served.items()}, abs=0.01)
        assert real.positions(starts) == {job_id: slot.position for job_id, slot in served.items()}
        ends = {job_id: at - began for job_id, at in real.ends.items()}
        promised = {job_id: eta for job_id, eta in etas.items() if eta is not None}
        assert {i: end for i, end in ends.items() if i in etas} == pytest.approx(promised, abs=0.01)
        assert before.slot(arrived) == slots[arrived.id]
        unserved = [slot for slot in slots.values() if slot.starts_in == inf]
        assert len(unserved) == sum(
            not any(site.serves(worker, tenant % len(shares), model) for worker in range(len(workers)))
            for tenant, _, model, _ in jobs
        )


class FastProvider:
    """A provider that renders any number of jobs in a second."""

    health = ProviderHealth()

    def refresh(self):
        pass

    def quote(self, spec, policy, jobs_ahead):
        return Quote("elsewhere", seconds=1.0, usd=0.1, model=spec.model)


@settings(
    max_examples=10 * FUZZ, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(TENANTS, DEDICATED, st.lists(JOB, min_size=15, max_size=25), WORKERS, st.integers(0, 4))
def test_jobs_that_the_spill_leaves_on_our_gpus_are_done_in_time(
    bench, shares, dedicated, jobs, workers, leased
):
    site = Site(f"t{next(NUMBERS)}", dedicated, workers)
    with emptied(bench, site):
        site.add_tenants(bench, shares, managed=ManagedPolicy(is_allowed=True))
        accepted = enqueue(bench, shares, site, jobs)
        real = Simulation(bench, site)
        busy = {number: end for number in range(min(leased, len(workers))) if (end := real.lease(number))}
        earlier = set(real.starts)
        site.announce(bench)
        WorkerRegistry(bench.database).heartbeat(MANAGED)
        router, tenants = (
            Router(FastProvider(), RoutingSettings(safety_factor=1.0)),
            TenantRegistry(bench.database),
        )
        Spiller(router, bench.queue, bench.reader, open_live(bench), tenants).run()
        real.run(dict.fromkeys(range(len(workers)), real.now) | busy)

        found = [bench.reader.find(job.tenant_id, job.id) for job in accepted if job.id not in earlier]
        assert all(job.finished_at <= job.deadline_at for job in found if job.route is Route.GPU)
        assert all(job.finished_at is None for job in found if job.route is Route.MANAGED)


def open_live(bench):
    """The forecast of a process that has run long enough to know its workers."""
    times = iter([0.0])
    return LiveForecast(bench.reader, clock=lambda: next(times, 1e6))


def enqueue(bench, shares, site, jobs):
    return [
        bench.queue.enqueue(
            make_ticket(
                site.tenant(tenant % len(shares)),
                gpu_seconds=seconds,
                model=model,
                slo_seconds=slo,
            )
        )
        for tenant, seconds, model, slo in jobs
    ]


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
        for name in (MANAGED.worker_id, *(f"worker-{number}" for number in range(len(site.workers)))):
            WorkerRegistry(bench.database).leave(WorkerId(name))


def test_a_job_enqueued_after_the_snapshot_gets_the_slot_it_has_in_the_next(bench):
    registry = WorkerRegistry(bench.database)
    registry.heartbeat(WorkerStatus(WorkerId("worker-1"), Route.GPU, ("flipbook",)))
    for tenant in ("acme", "acme", "globex"):
        bench.queue.enqueue(make_ticket(tenant, gpu_seconds=10))
    live = LiveForecast(bench.reader, clock=lambda: 0.0)
    before = live.get()
    job = bench.queue.enqueue(make_ticket("initech", gpu_seconds=5))
    assert before.slot(job).starts_in <= live.refresh().slots[job.id].starts_in
    assert live.get().slot(job) == live.get().slots[job.id]


def test_a_job_whose_worker_is_gone_waits_again_when_its_lease_has_ended(bench):
    """When a zone dies, its jobs are not shown as running until a worker returns."""
    bench.queue.enqueue(make_ticket("acme", gpu_seconds=10))
    lease = bench.queue.lease(make_offer())
    bench.queue.heartbeat(lease, Progress(Stage.DENOISE, 1, 2, 0.5))
    times = iter([0.0])  # of the start; by 1e6 s later no worker is expected any more
    live = LiveForecast(bench.reader, clock=lambda: next(times, 1e6))
    job = bench.reader.find(lease.job.tenant_id, lease.job.id)
    assert live.get().slot(job) is None
    bench.clocks.pass_time(3600)
    slot, eta_seconds = live.refresh().predict(job, job.created_at + 3600)
    assert slot.position == 1
    assert eta_seconds is None, "no worker is alive"
    again = bench.queue.lease(make_offer())
    assert live.refresh().slot(again.job) is None


def test_a_worker_that_has_leased_ahead_is_free_after_all_of_its_jobs(bench):
    """A GPU worker decodes one job and has leased the next: that one starts when the first is decoded."""
    WorkerRegistry(bench.database).heartbeat(WorkerStatus(WorkerId("worker-1"), Route.GPU, ("flipbook",)))
    for _ in range(3):
        bench.queue.enqueue(make_ticket("acme", gpu_seconds=10))
    decoding, prepared = bench.queue.lease(make_offer()), bench.queue.lease(make_offer())
    bench.queue.heartbeat(decoding, Progress(Stage.DENOISE, 0, 2, 0.0))
    bench.clocks.pass_time(6)
    for lease, progress in ((decoding, Progress(Stage.DECODE, 1, 2, 0.6)), (prepared, None)):
        bench.queue.heartbeat(lease, progress)
    WorkerRegistry(bench.database).heartbeat(WorkerStatus(WorkerId("worker-1"), Route.GPU, ("flipbook",)))
    live = open_live(bench)
    found = [bench.reader.find(lease.job.tenant_id, lease.job.id) for lease in (decoding, prepared)]
    assert [live.get().predict(job, bench.clocks.wall)[1] for job in found] == pytest.approx([4.0, 14.0])
    (slot,) = live.get().slots.values()
    assert slot.starts_in == pytest.approx(14.0)
