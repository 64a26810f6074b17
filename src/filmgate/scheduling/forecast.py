"""When each job will start and end: a pure simulation of what `lease` does from a snapshot on.

Queue position, ETA, back-pressure, routing and spill all read this forecast. `forecast` uses no clock and no
I/O; LiveForecast keeps the current one for all requests of a process.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf, isinf

from filmgate.jobs import Job, JobId, JobState, Route, TenantId, Ticket
from filmgate.scheduling.base import JobReader
from filmgate.scheduling.openings import Openings
from filmgate.scheduling.simulation import Lane, Lanes, SimulatedWorker, Simulation, Slot, TakesTurn, always
from filmgate.scheduling.snapshot import (
    QueuedJob,
    Snapshot,
    Tail,
    job_seconds,
    remaining_seconds,
)
from filmgate.scheduling.ttl_cache import TtlCache
from filmgate.scheduling.workers import TIMEOUT_SECONDS, WorkerStatus

FRESH_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Outlook:
    """What awaits a new job on local GPUs: its slot, the live workers that serve it, and the seconds of all
    queued jobs that wait for the same GPUs.
    """

    slot: Slot
    workers: int
    backlog_seconds: float


@dataclass(frozen=True, slots=True)
class Forecast:
    """The simulated future of a snapshot."""

    snapshot: Snapshot
    slots: Mapping[JobId, Slot]
    expects_workers: bool
    _lanes: Lanes = field(repr=False)
    _live: "tuple[SimulatedWorker, ...]" = field(repr=False)
    _simulations: tuple[Simulation, ...] = field(repr=False)  # each lane is served in at most one
    # Filled on first use: every request asks about a few lanes and tenants only.
    _openings: dict[tuple[Lane, TenantId], Openings] = field(default_factory=dict, repr=False)
    _backlogs: dict[TenantId | None, float] = field(default_factory=dict, repr=False)
    _jobs: Counter[Route] = field(default_factory=Counter, repr=False)

    def outlook(self, ticket: Ticket) -> Outlook:
        """What would await this request if it were enqueued now, on local GPUs."""
        tenant_id, model = ticket.tenant_id, ticket.spec.model
        deadline_at = self.snapshot.now + ticket.slo_seconds
        slot = self.arrive(tenant_id, Route.GPU, model, ticket.predicted.gpu_seconds, deadline_at)
        workers = self.count_workers(Route.GPU, model, tenant_id)
        return Outlook(slot, workers, self.backlog_seconds(tenant_id))

    def arrive(
        self, tenant_id: TenantId, route: Route, model: str, busy_seconds: float, deadline_at: float
    ) -> Slot:
        """The slot of a job that would be enqueued now: the same as in a forecast that includes the job."""
        lane = self._lanes.of(route, model, tenant_id)
        if (simulation := next((each for each in self._simulations if lane in each.served), None)) is None:
            starts_in = 0.0 if self.expects_workers else inf
            return Slot(1, starts_in, starts_in + busy_seconds)
        key = lane, tenant_id
        if key not in self._openings:
            self._openings[key] = Openings(simulation, lane, tenant_id)
        opening = self._openings[key].first(deadline_at)
        if opening.worker.is_assumed:
            return Slot(opening.position, inf, inf)
        return Slot(opening.position, opening.at, opening.at + opening.worker.seconds(busy_seconds))

    def slot(self, job: Job) -> Slot | None:
        """The slot of an open job: a queued one, or a running one whose lease has ended.

        None while a worker has the job.
        """
        if job.state is JobState.RUNNING and not any(
            each.job_id == job.id and each.was_running and each.ready_in == 0 for each in self.snapshot.queued
        ):
            return None
        if (slot := self.slots.get(job.id)) is not None:
            return slot
        # Enqueued after the snapshot, or beyond the jobs it lists: as if the job joined the queue now.
        busy, _ = job_seconds(job.route, job.predicted, job.routing.expected_seconds)
        return self.arrive(job.tenant_id, job.route, job.spec.model, busy, job.deadline_at)

    def predict(self, job: Job, now: float) -> tuple[Slot | None, float | None]:
        """The slot of an open job, and the seconds until its clip is ready.

        The seconds are None when no live worker serves it: a worker that is only expected promises nothing.
        """
        slot = self.slot(job)
        busy, beside = job_seconds(job.route, job.predicted, job.routing.expected_seconds)
        if slot is None:
            return None, self._running_seconds(job, now, busy + beside)
        if self.count_workers(job.route, job.spec.model, job.tenant_id) == 0 or isinf(slot.ends_in):
            return slot, None
        age = max(now - self.snapshot.now, 0.0)
        return slot, max(slot.ends_in - age, 0.0) + beside

    def _running_seconds(self, job: Job, now: float, whole: float) -> float:
        """Seconds until a running job is done."""
        if job.started_at is not None and job.progress is not None:
            return remaining_seconds(whole, now - job.started_at, job.progress.fraction)
        # It was leased while its worker still renders another one.
        ends = (each.ends_in for each in self.snapshot.running if each.job_id == job.id)
        return max(next(ends, whole) - (now - self.snapshot.now), whole)

    def starts_in(self, job: QueuedJob) -> float:
        """Seconds until a job of the snapshot starts."""
        slot = self.slots.get(job.job_id) if job.job_id is not None else None
        return slot.starts_in if slot is not None else inf

    def count_workers(self, route: Route, model: str, tenant_id: TenantId) -> int:
        """Live workers that serve the model for the tenant, each counted with its capacity.

        A worker that is only expected is not counted.
        """
        lane = self._lanes.of(route, model, tenant_id)
        return sum(lane in worker.lanes for worker in self._live)

    def backlog_seconds(self, tenant_id: TenantId) -> float:
        """Predicted seconds of all queued jobs that wait for the same GPUs as the tenant's jobs."""
        dedicated = self.snapshot.dedicated
        # A dedicated tenant has its own GPUs. All other tenants share one backlog.
        own = tenant_id if tenant_id in dedicated else None

        def counts(job: QueuedJob | Tail) -> bool:
            is_alike = job.tenant_id not in dedicated if own is None else job.tenant_id == own
            return job.route is Route.GPU and is_alike

        if own not in self._backlogs:
            listed = sum(job.busy_seconds for job in self.snapshot.queued if counts(job))
            self._backlogs[own] = listed + sum(t.gpu_seconds for t in self.snapshot.tails if counts(t))
        return self._backlogs[own]

    def count_jobs(self, route: Route) -> int:
        """Queued and running jobs on a route."""
        if not self._jobs:
            self._jobs.update(job.route for job in self.snapshot.queued)
            self._jobs.update(job.route for job in self.snapshot.running)
            for tail in self.snapshot.tails:
                self._jobs[tail.route] += tail.jobs
        return self._jobs[route]


def forecast(
    snapshot: Snapshot, *, expects_workers: bool = False, takes_turn: TakesTurn = always
) -> Forecast:
    """Simulate the queue until every job has started.

    A lane that no live worker serves is ordered as if one worker served it; its times are infinite unless
    `expects_workers`. A job for which `takes_turn` returns False leaves the queue and delays no other job.
    """
    lanes = Lanes(snapshot)
    live = [worker for status in snapshot.workers for worker in _live_workers(status, snapshot, lanes)]
    served = {lane for worker in live for lane in worker.lanes}
    waiting: tuple[QueuedJob | Tail, ...] = (*snapshot.queued, *snapshot.tails)
    unserved = {lanes.of(each.route, each.model, each.tenant_id) for each in waiting} - served
    assumed = [
        SimulatedWorker(frozenset({lane}), is_assumed=not expects_workers) for lane in sorted(unserved)
    ]
    if expects_workers:
        simulations = [Simulation(snapshot, lanes, takes_turn, [*live, *assumed])]
    else:
        # Apart: a job that cannot start is not charged to its tenant's share of the live workers.
        simulations = [Simulation(snapshot, lanes, takes_turn, workers) for workers in (live, assumed)]
    slots: dict[JobId, Slot] = {}
    for simulation in simulations:
        slots |= simulation.run()
    return Forecast(snapshot, slots, expects_workers, lanes, tuple(live), tuple(simulations))


def _live_workers(status: WorkerStatus, snapshot: Snapshot, lanes: Lanes) -> Iterator[SimulatedWorker]:
    """One for each job the worker can run in parallel; those with running jobs are free when they end."""
    running = sorted(job.free_in for job in snapshot.running if job.worker_id == status.worker_id)
    for _ in range(max(status.capacity, 1)):
        worker = SimulatedWorker(lanes.served_by(status), speed=status.speed)
        worker.free_at = running.pop() if running else 0.0
        yield worker


class LiveForecast(TtlCache[Forecast]):
    """The current forecast, refreshed at most twice a second: `get` blocks for a database read if one is due.

    For TIMEOUT_SECONDS after the start, workers that have not announced themselves yet are expected to.
    """

    def __init__(self, reader: JobReader, clock: Callable[[], float] = time.monotonic) -> None:
        self._reader = reader
        self._started_at = clock()
        super().__init__(self._make, FRESH_SECONDS, clock)

    def _make(self) -> Forecast:
        return forecast(self._reader.snapshot(), expects_workers=self.expects_workers)

    def refresh(self) -> Forecast:
        """A forecast made now."""
        self.expire()
        return self.get()

    @property
    def expects_workers(self) -> bool:
        """Workers may be starting together with this process: it has not run long enough to know."""
        return self._clock() - self._started_at < TIMEOUT_SECONDS
