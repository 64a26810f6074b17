"""The forecast agrees with what the queue really does, on every database."""

import heapq
from contextlib import contextmanager
from itertools import count
from math import inf

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from filmgate.jobs import Clip, Route, Share, WorkerId
from filmgate.scheduling.base import AttemptResult
from filmgate.scheduling.forecast import forecast
from filmgate.scheduling.live_forecast import LiveForecast, to_arrival
from filmgate.scheduling.workers import WorkerRegistry, WorkerStatus
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
WORKERS = st.lists(st.sampled_from([("wan",), ("flipbook",), ("wan", "flipbook")]), min_size=1, max_size=4)


class Simulation:
    """Workers that lease and complete real jobs; every job takes exactly its predicted seconds."""

    def __init__(self, bench, models_of):
        self.bench, self.models_of = bench, models_of
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
        lease = self.bench.queue.lease(make_offer(f"worker-{number}", models=self.models_of[number]))
        if lease is None:
            return None
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


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shares=TENANTS, jobs=JOBS, models_of=WORKERS, running=st.integers(0, 4), passed=st.integers(0, 20))
def test_every_job_starts_when_the_forecast_says(bench, shares, jobs, models_of, running, passed):
    with emptied(bench, models_of):
        enqueue(bench, shares, jobs)
        real = Simulation(bench, models_of)
        busy = {number: end for number in range(min(running, len(models_of))) if (end := real.lease(number))}
        real.advance_to(min([passed, *busy.values()]))
        for number, models in enumerate(models_of):
            status = WorkerStatus(WorkerId(f"worker-{number}"), Route.GPU, models)
            WorkerRegistry(bench.database).heartbeat(status)
        started = set(real.starts)

        began, slots = real.now, forecast(bench.reader.snapshot()).slots
        real.run(dict.fromkeys(range(len(models_of)), began) | busy)

        expected = {job_id: began + slot.starts_in for job_id, slot in slots.items() if slot.starts_in < inf}
        actual = {job_id: at for job_id, at in real.starts.items() if job_id not in started}
        assert actual == pytest.approx(expected)
        served = {model for models in models_of for model in models}
        unserved = [slot for slot in slots.values() if slot.starts_in == inf]
        assert len(unserved) == sum(1 for _, _, model, _ in jobs if model not in served)


def enqueue(bench, shares, jobs):
    prefix = f"t{next(NUMBERS)}"
    for tenant, seconds, model, slo in jobs:
        number = tenant % len(shares)
        ticket = make_ticket(
            f"{prefix}-{number}", gpu_seconds=seconds, share=shares[number], model=model, slo_seconds=slo
        )
        bench.queue.enqueue(ticket)


@contextmanager
def emptied(bench, models_of):
    """Leaves no jobs and no workers to the next example."""
    try:
        yield
    finally:
        for job in bench.reader.snapshot().queued:
            bench.queue.cancel(job.tenant_id, job.job_id)
        bench.clocks.pass_time(3600)
        while bench.queue.lease(make_offer(models=("wan", "flipbook"))) is not None:
            pass
        for number in range(len(models_of)):
            WorkerRegistry(bench.database).leave(WorkerId(f"worker-{number}"))


def test_a_job_enqueued_after_the_snapshot_gets_the_slot_it_has_in_the_next(bench):
    registry = WorkerRegistry(bench.database)
    registry.heartbeat(WorkerStatus(WorkerId("worker-1"), Route.GPU, ("flipbook",)))
    for tenant in ("acme", "acme", "globex"):
        bench.queue.enqueue(make_ticket(tenant, gpu_seconds=10))
    live = LiveForecast(bench.reader, clock=lambda: 0.0)
    before = live.get()
    job = bench.queue.enqueue(make_ticket("initech", gpu_seconds=5))
    assert before.arrive(to_arrival(job.tenant_id, job)).starts_in <= live.refresh().slots[job.id].starts_in
    assert live.slot(job) == live.get().slots[job.id]
