"""When each job will start and end: a pure simulation of what `lease` does from a snapshot on.

Queue position, ETA, back-pressure, routing and spill all read this forecast. `forecast` uses no clock and no
I/O; LiveForecast keeps the current one for all requests of a process.
"""

import threading
import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from math import inf, isinf

from filmgate.jobs import Job, JobId, JobState, Route, TenantId
from filmgate.scheduling.base import JobReader
from filmgate.scheduling.simulation import Lane, Lanes, SimulatedWorker, Simulation, Slot, TakesTurn, always
from filmgate.scheduling.snapshot import (
    QueuedJob,
    Share,
    Snapshot,
    Tail,
    busy_seconds,
    remaining_seconds,
    whole_seconds,
)
from filmgate.scheduling.workers import TIMEOUT_SECONDS, WorkerStatus

_NEW_TENANT = Share()
FRESH_SECONDS = 0.5
# A forecast over a long queue takes longer: at most this share of the time goes into making it.
_MAX_DUTY = 0.1


@dataclass(frozen=True, slots=True)
class Arrival:
    """A job that is not in the queue yet."""

    tenant_id: TenantId
    route: Route
    model: str
    busy_seconds: float
    deadline_at: float


@dataclass(frozen=True, slots=True)
class Forecast:
    """The simulated future of a snapshot."""

    snapshot: Snapshot
    slots: Mapping[JobId, Slot]
    expects_workers: bool
    _lanes: Lanes = field(repr=False)
    _live: "tuple[SimulatedWorker, ...]" = field(repr=False)
    _runs: "tuple[SimulatedWorker, ...]" = field(repr=False)  # the live workers, then the assumed ones
    # Filled on first use: every request asks about a few lanes and tenants only.
    _curves: "dict[Lane, _Curve]" = field(default_factory=dict, repr=False)
    _accounts: "dict[TenantId, _Account]" = field(default_factory=dict, repr=False)
    _backlogs: dict[TenantId | None, float] = field(default_factory=dict, repr=False)
    _jobs: Counter[Route] = field(default_factory=Counter, repr=False)

    def arrive(self, job: Arrival) -> Slot:
        """The slot of a job that would be enqueued now, without simulating again.

        The job starts when the simulation first serves a tenant whose virtual time is beyond the job's own.
        """
        lane = self._lanes.of(job.route, job.model, job.tenant_id)
        curve, account = self._curve(lane), self._account(job.tenant_id)
        starts_in = max(curve.when(account.start_tag(job.deadline_at), job.tenant_id), account.has_room_in)
        position = 1 + curve.count_before(lane, starts_in)
        if not self.expects_workers and self._count_workers(lane) == 0:
            starts_in = inf
        return Slot(position, starts_in, starts_in + job.busy_seconds)

    def starts_in(self, job: QueuedJob) -> float:
        """Seconds until a job of the snapshot starts."""
        slot = self.slots.get(job.job_id) if job.job_id is not None else None
        return slot.starts_in if slot is not None else inf

    def count_workers(self, route: Route, model: str, tenant_id: TenantId) -> int:
        """Live workers that serve the model for the tenant, each counted with its capacity.

        A worker that is only expected is not counted.
        """
        return self._count_workers(self._lanes.of(route, model, tenant_id))

    def backlog_seconds(self, tenant_id: TenantId) -> float:
        """Predicted seconds of all queued jobs that wait for the same GPUs as the tenant's jobs."""
        dedicated = self.snapshot.dedicated
        # A dedicated tenant has GPUs of its own. All other tenants share one backlog.
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

    def _count_workers(self, lane: Lane) -> int:
        return sum(lane in worker.lanes for worker in self._live)

    def _curve(self, lane: Lane) -> "_Curve":
        if lane not in self._curves:
            self._curves[lane] = _Curve([run for run in self._runs if lane in run.lanes], self._lanes)
        return self._curves[lane]

    def _account(self, tenant_id: TenantId) -> "_Account":
        if tenant_id not in self._accounts:
            self._accounts[tenant_id] = _Account(tenant_id, self.snapshot, self._runs)
        return self._accounts[tenant_id]


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
    return Forecast(snapshot, slots, expects_workers, lanes, tuple(live), (*live, *assumed))


class _Curve:
    """How far virtual time has come at which moment, on the workers of one lane."""

    def __init__(self, workers: list[SimulatedWorker], lanes: Lanes) -> None:
        starts = sorted((at, (tag, job.tenant_id)) for worker in workers for at, tag, job in worker.started)
        self._starts = [start for start, _ in starts]
        # Tags grow with time except where a job bypasses fair share: the highest so far is what counts.
        self._tags = list(accumulate((tag for _, tag in starts), max))
        self._free_at = min((worker.free_at for worker in workers), default=0.0)
        self._by_lane: dict[Lane, list[float]] = {}
        for worker in workers:
            for start, _, job in worker.started:
                lane = lanes.of(job.route, job.model, job.tenant_id)
                self._by_lane.setdefault(lane, []).append(start)
        for times in self._by_lane.values():
            times.sort()

    def when(self, tag: float, tenant_id: TenantId) -> float:
        """When a job with this start tag begins. Tenants with the same virtual time take turns by id."""
        place = bisect_right(self._tags, (tag, tenant_id))
        return min(self._starts[place] if place < len(self._starts) else inf, self._free_at)

    def count_before(self, lane: Lane, moment: float) -> int:
        return bisect_left(self._by_lane.get(lane, []), moment)


class _Account:
    """What a new job of one tenant waits for: the tenant's own queued and running jobs."""

    def __init__(self, tenant_id: TenantId, snapshot: Snapshot, workers: tuple[SimulatedWorker, ...]) -> None:
        share = snapshot.shares.get(tenant_id, _NEW_TENANT)
        own = sorted(
            (job.deadline_at, job.share_seconds) for job in snapshot.queued if job.tenant_id == tenant_id
        )
        tails = [tail.gpu_seconds for tail in snapshot.tails if tail.tenant_id == tenant_id]
        is_idle = not own and not tails
        self._virtual_time = share.virtual_time
        if is_idle:
            self._virtual_time = max(share.virtual_time, snapshot.virtual_now(tenant_id))
        self._weight = share.weight
        self._deadlines = [deadline_at for deadline_at, _ in own]
        self._seconds = list(accumulate((seconds for _, seconds in own), initial=sum(tails)))
        self.has_room_in = 0.0  # when `max_running` leaves room for a job after all others of the tenant
        if share.max_running is not None:
            ends = sorted(end for worker in workers for end in worker.ends_of(tenant_id))
            must_end = len(ends) - share.max_running
            self.has_room_in = ends[must_end] if must_end >= 0 else 0.0

    def start_tag(self, deadline_at: float) -> float:
        """The tenant's virtual time after its jobs with an earlier deadline."""
        before = self._seconds[bisect_right(self._deadlines, deadline_at)]
        return self._virtual_time + before / self._weight


def _live_workers(status: WorkerStatus, snapshot: Snapshot, lanes: Lanes) -> Iterator[SimulatedWorker]:
    """One for each job the worker can run at once; those with a running job are free when it ends."""
    running = (job for job in snapshot.running if job.worker_id == status.worker_id)
    for _ in range(max(status.capacity, 1)):
        worker = SimulatedWorker(lanes.served_by(status), speed=status.speed)
        if (job := next(running, None)) is not None:
            worker.free_at = job.free_in / status.speed
            worker.served.append((job.tenant_id, worker.free_at))
        yield worker


class LiveForecast:
    """Answers when a job starts and ends, from a forecast that is refreshed at most twice a second.

    All methods block for a database read when a refresh is due. For TIMEOUT_SECONDS after the start, workers
    that have not announced themselves yet are expected to.
    """

    def __init__(self, reader: JobReader, clock: Callable[[], float] = time.monotonic) -> None:
        self._reader = reader
        self._clock = clock
        self._started_at = clock()
        self._lock = threading.Lock()
        self._current: Forecast | None = None
        self._expires_at = 0.0

    def get(self) -> Forecast:
        """The current forecast, at most FRESH_SECONDS old (older only where making one takes long)."""
        with self._lock:
            began = self._clock()
            if self._current is None or began >= self._expires_at:
                self._current = forecast(self._reader.snapshot(), expects_workers=self.expects_workers)
                took = self._clock() - began
                self._expires_at = began + max(FRESH_SECONDS, took / _MAX_DUTY)
            return self._current

    def expire(self) -> None:
        """Make the next reader read the queue again."""
        with self._lock:
            self._expires_at = 0.0

    def refresh(self) -> Forecast:
        """A forecast made now."""
        self.expire()
        return self.get()

    @property
    def expects_workers(self) -> bool:
        """Workers may be starting together with this process: it has not run long enough to know."""
        return self._clock() - self._started_at < TIMEOUT_SECONDS

    def slot(self, job: Job) -> Slot | None:
        """The slot of a job that waits for a worker: a queued one, or a running one whose lease has ended.

        None for any other job.
        """
        if job.state.is_final:
            return None
        current = self.get()
        if job.state is JobState.RUNNING and not any(
            each.job_id == job.id and each.was_running and each.ready_in == 0
            for each in current.snapshot.queued
        ):
            return None
        if (slot := current.slots.get(job.id)) is not None:
            return slot
        # Enqueued after the snapshot, or beyond the jobs it lists: as if the job joined the queue now.
        return current.arrive(to_arrival(job))

    def eta_seconds(self, job: Job, now: float) -> float | None:
        """Seconds until the clip is ready. None when the job is final or no live worker serves it.

        A worker that is only expected promises nothing.
        """
        if job.state.is_final:
            return None
        provider_seconds = job.routing.expected_seconds
        whole = whole_seconds(job.route, job.predicted, provider_seconds)
        if (slot := self.slot(job)) is None:
            if job.started_at is None or job.progress is None:
                return whole  # leased, not started yet
            return remaining_seconds(whole, now - job.started_at, job.progress.fraction)
        current = self.get()
        if current.count_workers(job.route, job.spec.model, job.tenant_id) == 0:
            return None
        age = max(now - current.snapshot.now, 0.0)
        not_busy = whole - busy_seconds(job.route, job.predicted, provider_seconds)
        ends_in = max(slot.ends_in - age, 0.0) + not_busy
        return None if isinf(ends_in) else ends_in


def to_arrival(job: Job) -> Arrival:
    busy = busy_seconds(job.route, job.predicted, job.routing.expected_seconds)
    return Arrival(job.tenant_id, job.route, job.spec.model, busy, job.deadline_at)
