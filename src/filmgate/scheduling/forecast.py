"""When each job will start and end: a pure simulation of what `lease` does from a snapshot on.

Queue position, ETA, back-pressure, routing and spill all read this forecast. It uses no clock and no I/O.
"""

import heapq
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, chain
from math import inf

from filmgate.jobs import JobId, Route, TenantId
from filmgate.scheduling.snapshot import QueuedJob, Share, Snapshot
from filmgate.scheduling.workers import WorkerStatus

Lane = tuple[Route, str]  # jobs of one route and model
TakesTurn = Callable[[QueuedJob, float], bool]

_NEW_TENANT = Share()


@dataclass(frozen=True, slots=True)
class Slot:
    """A job's place in the forecast, in seconds from the snapshot on.

    Both are infinite when no live worker serves the job. `position` counts from 1 among the queued jobs of
    the same route and model.
    """

    position: int
    starts_in: float
    ends_in: float


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
    _runs: "tuple[_Worker, ...]" = field(repr=False)
    # Filled on first use: every request asks about a few lanes and tenants only.
    _curves: "dict[Lane, _Curve]" = field(default_factory=dict, repr=False)
    _accounts: "dict[TenantId, _Account]" = field(default_factory=dict, repr=False)
    _totals: "dict[Route, _Total]" = field(default_factory=dict, repr=False)

    def arrive(self, job: Arrival) -> Slot:
        """The slot of a job that would be enqueued now, without simulating again.

        The job starts when the simulation first serves a tenant whose virtual time is beyond the job's own.
        """
        lane = (job.route, job.model)
        curve, account = self._curve(lane), self._account(job.tenant_id)
        starts_in = max(curve.when(account.start_tag(job.deadline_at), job.tenant_id), account.has_room_in)
        position = 1 + curve.count_before(lane, starts_in)
        if not self.expects_workers and self.count_workers(*lane) == 0:
            starts_in = inf
        return Slot(position, starts_in, starts_in + job.busy_seconds)

    def starts_in(self, job: QueuedJob) -> float:
        """Seconds until a job of the snapshot starts."""
        slot = self.slots.get(job.job_id) if job.job_id is not None else None
        return slot.starts_in if slot is not None else inf

    def count_workers(self, route: Route, model: str) -> int:
        """Live workers that serve the model, each counted with its capacity."""
        return sum(run.serves((route, model)) and not run.is_assumed for run in self._runs)

    def backlog_seconds(self, route: Route) -> float:
        """Predicted seconds of all queued jobs on a route."""
        return self._total(route).queued_seconds

    def count_jobs(self, route: Route) -> int:
        """Queued and running jobs on a route."""
        return self._total(route).jobs

    def _curve(self, lane: Lane) -> "_Curve":
        if lane not in self._curves:
            self._curves[lane] = _Curve([run for run in self._runs if run.serves(lane)])
        return self._curves[lane]

    def _total(self, route: Route) -> "_Total":
        if route not in self._totals:
            self._totals[route] = _add_up(self.snapshot, route)
        return self._totals[route]

    def _account(self, tenant_id: TenantId) -> "_Account":
        if tenant_id not in self._accounts:
            self._accounts[tenant_id] = _Account(tenant_id, self.snapshot, self._runs)
        return self._accounts[tenant_id]


def always(_job: QueuedJob, _starts_in: float) -> bool:
    """Every job takes its turn."""
    return True


def forecast(
    snapshot: Snapshot, *, expects_workers: bool = False, takes_turn: TakesTurn = always
) -> Forecast:
    """Simulate the queue until every job has started.

    A lane that no live worker serves is ordered as if one worker served it; its times are infinite unless
    `expects_workers`. A job for which `takes_turn` returns False leaves the queue and delays no other job.
    """
    live = [worker for status in snapshot.workers for worker in _live_workers(status, snapshot)]
    served = {lane for worker in live for lane in worker.lanes}
    unserved = sorted(_queued_lanes(snapshot) - served)
    assumed = [_Worker(frozenset({lane}), is_assumed=not expects_workers) for lane in unserved]
    if expects_workers:
        simulations = [_Simulation(snapshot, takes_turn, [*live, *assumed])]
    else:
        # Apart: a job that cannot start is not charged to its tenant's share of the live workers.
        simulations = [_Simulation(snapshot, takes_turn, live), _Simulation(snapshot, takes_turn, assumed)]
    slots: dict[JobId, Slot] = {}
    for simulation in simulations:
        slots |= simulation.run()
    return Forecast(snapshot, slots, expects_workers, (*live, *assumed))


class _Worker:
    """One slot of a worker: what it has started, and when it is free."""

    __slots__ = ("_lanes", "free_at", "is_assumed", "served", "started")

    def __init__(self, lanes: frozenset[Lane], free_at: float = 0.0, *, is_assumed: bool = False) -> None:
        self._lanes = lanes
        self.free_at = free_at
        self.is_assumed = is_assumed
        self.started: list[tuple[float, float, QueuedJob]] = []  # (start, start tag, job)
        self.served: list[tuple[TenantId, float]] = []  # (tenant, end), running jobs included

    def serves(self, lane: Lane) -> bool:
        return lane in self._lanes

    @property
    def lanes(self) -> frozenset[Lane]:
        return self._lanes

    def run(self, job: QueuedJob, at: float, tag: float) -> float:
        self.started.append((at, tag, job))
        self.free_at = at + job.busy_seconds
        self.served.append((job.tenant_id, self.free_at))
        return self.free_at

    def ends_of(self, tenant_id: TenantId) -> Iterator[float]:
        return (end for tenant, end in self.served if tenant == tenant_id)


class _Curve:
    """How far virtual time has come at which moment, on the workers of one lane."""

    def __init__(self, workers: list[_Worker]) -> None:
        starts = sorted((at, (tag, job.tenant_id)) for worker in workers for at, tag, job in worker.started)
        self._starts = [start for start, _ in starts]
        # Tags grow with time except where a job bypasses fair share: the highest so far is what counts.
        self._tags = list(accumulate((tag for _, tag in starts), max))
        self._free_at = min((worker.free_at for worker in workers), default=0.0)
        self._by_lane: dict[Lane, list[float]] = {}
        for worker in workers:
            for start, _, job in worker.started:
                self._by_lane.setdefault((job.route, job.model), []).append(start)
        for times in self._by_lane.values():
            times.sort()

    def when(self, tag: float, tenant_id: TenantId) -> float:
        """When a job with this start tag begins. Tenants with the same virtual time take turns by id."""
        place = bisect_right(self._tags, (tag, tenant_id))
        return min(self._starts[place] if place < len(self._starts) else inf, self._free_at)

    def count_before(self, lane: Lane, moment: float) -> int:
        return bisect_left(self._by_lane.get(lane, []), moment)


@dataclass(frozen=True, slots=True)
class _Total:
    jobs: int
    queued_seconds: float


def _add_up(snapshot: Snapshot, route: Route) -> _Total:
    queued = [job.busy_seconds for job in snapshot.queued if job.route is route]
    tails = [tail for tail in snapshot.tails if tail.route is route]
    running = sum(job.route is route for job in snapshot.running)
    return _Total(
        jobs=len(queued) + sum(tail.jobs for tail in tails) + running,
        queued_seconds=sum(queued) + sum(tail.gpu_seconds for tail in tails),
    )


class _Account:
    """What a new job of one tenant waits for: the tenant's own queued and running jobs."""

    def __init__(self, tenant_id: TenantId, snapshot: Snapshot, workers: tuple[_Worker, ...]) -> None:
        share = snapshot.shares.get(tenant_id, _NEW_TENANT)
        own = sorted(
            (job.deadline_at, job.share_seconds) for job in snapshot.queued if job.tenant_id == tenant_id
        )
        tails = [tail.gpu_seconds for tail in snapshot.tails if tail.tenant_id == tenant_id]
        is_idle = not own and not tails
        self._virtual_time = max(share.virtual_time, snapshot.virtual_now) if is_idle else share.virtual_time
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


class _Tenant:
    """A tenant's queued jobs per lane, and its account as the simulation moves it on."""

    def __init__(self, tenant_id: TenantId, share: Share) -> None:
        self.id = tenant_id
        self.weight = share.weight
        self.virtual_time = share.virtual_time
        self.running = share.running
        self.max_running = inf if share.max_running is None else share.max_running
        self.lanes: dict[Lane, deque[QueuedJob]] = {}

    def add(self, job: QueuedJob) -> None:
        self.lanes.setdefault((job.route, job.model), deque()).append(job)

    def head(self, lanes: frozenset[Lane]) -> deque[QueuedJob] | None:
        """The lane, among these, whose first job has the earliest deadline."""
        ready = [jobs for lane, jobs in self.lanes.items() if lane in lanes and jobs]
        return min(ready, key=lambda jobs: (jobs[0].deadline_at, jobs[0].seq), default=None)


class _Simulation:
    """The queue of some workers: the jobs on their lanes, and the accounts of the tenants."""

    def __init__(self, snapshot: Snapshot, takes_turn: TakesTurn, workers: list[_Worker]) -> None:
        self._snapshot = snapshot
        self._takes_turn = takes_turn
        self._workers = workers
        self._slots: dict[JobId, Slot] = {}
        self._positions: dict[Lane, int] = {}
        self._tenants: dict[TenantId, _Tenant] = {}
        self._due: list[QueuedJob] = []
        self._ends = [(job.free_in, job.tenant_id) for job in snapshot.running]
        heapq.heapify(self._ends)
        self._waiting = 0
        self._queue_jobs({lane for worker in workers for lane in worker.lanes})
        self._by_time = [(tenant.virtual_time, tenant.id) for tenant in self._tenants.values()]
        heapq.heapify(self._by_time)

    def _queue_jobs(self, lanes: set[Lane]) -> None:
        listed = sorted(self._snapshot.queued, key=lambda job: (job.deadline_at, job.seq))
        tails = (job for tail in self._snapshot.tails for job in tail.expand())
        for job in chain(listed, tails):
            if (job.route, job.model) not in lanes:
                continue
            self._waiting += 1
            if job.ready_in is None:
                self._tenant(job.tenant_id).add(job)
            else:
                self._due.append(job)
        self._due.sort(key=lambda job: job.ready_in or 0.0)

    def run(self) -> dict[JobId, Slot]:
        """Start every job that can start; returns the slots of all."""
        free = [(worker.free_at, number) for number, worker in enumerate(self._workers)]
        heapq.heapify(free)
        while free and self._waiting:
            at, number = heapq.heappop(free)
            self._release(at)
            worker = self._workers[number]
            if (job := self._next(worker, at)) is not None:
                ends_at = self._start(worker, *job, at)
                heapq.heappush(free, (ends_at, number))
            elif (later := self._next_event(worker, at)) < inf:
                heapq.heappush(free, (later, number))
        # A lost job that no worker serves can hold its tenant's last place: the others never start.
        lanes = (lane for tenant in self._tenants.values() for lane in tenant.lanes.values())
        for blocked in chain(self._due, *lanes):
            self._add_slot(blocked, inf)
        return self._slots

    def _tenant(self, tenant_id: TenantId) -> _Tenant:
        if tenant_id not in self._tenants:
            share = self._snapshot.shares.get(tenant_id, _NEW_TENANT)
            self._tenants[tenant_id] = _Tenant(tenant_id, share)
        return self._tenants[tenant_id]

    def _release(self, at: float) -> None:
        while self._ends and self._ends[0][0] <= at:
            _, tenant_id = heapq.heappop(self._ends)
            self._tenant(tenant_id).running -= 1

    def _next(self, worker: _Worker, at: float) -> tuple[QueuedJob, float] | None:
        """The job `lease` would give this worker now, and its start tag."""
        while (due := self._next_due(worker, at)) is not None:
            self._due.remove(due)
            if self._takes(worker, due, at):
                return due, -inf
        while (found := self._next_fair(worker)) is not None:
            tenant, jobs = found
            job = jobs.popleft()
            tag, takes = tenant.virtual_time, self._takes(worker, job, at)
            if takes:
                tenant.virtual_time += job.share_seconds / tenant.weight
            if any(tenant.lanes.values()):
                heapq.heappush(self._by_time, (tenant.virtual_time, tenant.id))
            if takes:
                return job, tag
        return None

    def _next_due(self, worker: _Worker, at: float) -> QueuedJob | None:
        for job in self._due:
            if (job.ready_in or 0.0) > at:
                return None
            tenant = self._tenant(job.tenant_id)
            has_room = job.was_running or tenant.running < tenant.max_running
            if has_room and worker.serves((job.route, job.model)):
                return job
        return None

    def _next_fair(self, worker: _Worker) -> tuple[_Tenant, deque[QueuedJob]] | None:
        skipped = []
        found = None
        while self._by_time and found is None:
            entry = heapq.heappop(self._by_time)
            tenant = self._tenants[entry[1]]
            jobs = tenant.head(worker.lanes) if tenant.running < tenant.max_running else None
            if jobs is None:
                skipped.append(entry)
            else:
                found = tenant, jobs
        for entry in skipped:
            heapq.heappush(self._by_time, entry)
        return found

    def _takes(self, worker: _Worker, job: QueuedJob, at: float) -> bool:
        takes = self._takes_turn(job, inf if worker.is_assumed else at)
        self._waiting -= not takes
        return takes

    def _start(self, worker: _Worker, job: QueuedJob, tag: float, at: float) -> float:
        self._waiting -= 1
        tenant = self._tenant(job.tenant_id)
        tenant.running += not job.was_running
        ends_at = worker.run(job, at, tag)
        heapq.heappush(self._ends, (ends_at, job.tenant_id))
        self._add_slot(job, inf if worker.is_assumed else at)
        return ends_at

    def _add_slot(self, job: QueuedJob, starts_in: float) -> None:
        lane = (job.route, job.model)
        self._positions[lane] = self._positions.get(lane, 0) + 1
        if job.job_id is not None:
            self._slots[job.job_id] = Slot(self._positions[lane], starts_in, starts_in + job.busy_seconds)

    def _next_event(self, worker: _Worker, at: float) -> float:
        """When a worker that found nothing should look again: a job ends, or a backoff is over."""
        ends = self._ends[0][0] if self._ends else inf
        ready = (job.ready_in or 0.0 for job in self._due if worker.serves((job.route, job.model)))
        return min(ends, next((moment for moment in ready if moment > at), inf))


def _live_workers(status: WorkerStatus, snapshot: Snapshot) -> Iterator[_Worker]:
    """One for each job the worker can run at once; those with a running job are free when it ends."""
    running = (job for job in snapshot.running if job.worker_id == status.worker_id)
    for _ in range(max(status.capacity, 1)):
        worker = _Worker(_lanes_of(status))
        if (job := next(running, None)) is not None:
            worker.free_at = job.free_in
            worker.served.append((job.tenant_id, job.free_in))
        yield worker


def _queued_lanes(snapshot: Snapshot) -> set[Lane]:
    listed = {(job.route, job.model) for job in snapshot.queued}
    return listed | {(tail.route, tail.model) for tail in snapshot.tails}


def _lanes_of(status: WorkerStatus) -> frozenset[Lane]:
    return frozenset((status.route, model) for model in status.models)
