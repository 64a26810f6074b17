"""Simulates what `lease` does, from a snapshot on, until every job has started. The core of the forecast."""

import heapq
from bisect import insort
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, takewhile
from math import inf
from typing import NamedTuple

from filmgate.jobs import JobId, Route, TenantId
from filmgate.scheduling.snapshot import Account, QueuedJob, Snapshot
from filmgate.scheduling.workers import WorkerStatus

# Route, model and tenant; the tenant is empty unless it is dedicated or has its own workers.
Lane = tuple[Route, str, TenantId]

_ANY = TenantId("")
TakesTurn = Callable[[QueuedJob, float], bool]
_NEW_TENANT = Account()


class Lanes:
    """The lanes of a snapshot: jobs that wait for the same workers, because of their route, model and tenant.

    The same rule as in `lease`: see `claims.may_take`.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._dedicated = snapshot.dedicated
        named = {tenant for worker in snapshot.workers for tenant in worker.tenants}
        self._apart = named | snapshot.dedicated

    def of(self, route: Route, model: str, tenant_id: TenantId) -> Lane:
        return (route, model, tenant_id if tenant_id in self._apart else _ANY)

    def served_by(self, worker: WorkerStatus) -> frozenset[Lane]:
        tenants = set(worker.tenants) or {_ANY, *self._apart}
        if not worker.tenants and worker.route is Route.GPU:
            tenants -= self._dedicated
        return frozenset((worker.route, model, tenant) for model in worker.models for tenant in tenants)


@dataclass(frozen=True, slots=True)
class Slot:
    """A job's place in the forecast, in seconds from the snapshot on.

    Both are infinite when no live worker serves the job. `position` counts from 1 among the queued jobs of
    the same lane.
    """

    position: int
    starts_in: float
    ends_in: float


def always(_job: QueuedJob, _starts_in: float) -> bool:
    """Every job takes its turn."""
    return True


class SimulatedWorker:
    """One slot of a worker. One with `speed` 0.5 takes twice as long as predicted."""

    __slots__ = ("_speed", "free_at", "is_assumed", "lanes")

    def __init__(self, lanes: frozenset[Lane], *, is_assumed: bool = False, speed: float = 1.0) -> None:
        self.lanes = lanes
        self._speed = speed
        self.free_at = 0.0
        self.is_assumed = is_assumed

    def seconds(self, busy_seconds: float) -> float:
        """How long work takes here that takes `busy_seconds` at full speed."""
        return busy_seconds / self._speed


class Look(NamedTuple):
    """A free worker looked for a job, and started this one or found none.

    `tag` is the tenant's virtual time when the job was chosen; -inf for a job that bypasses fair share, inf
    without a job.
    """

    at: float
    worker: SimulatedWorker
    tag: float = inf
    job: QueuedJob | None = None
    lane: Lane | None = None
    ends_at: float = inf


class _Tenant:
    """A tenant's queued jobs per lane, and its account as the simulation moves it on."""

    def __init__(self, tenant_id: TenantId, account: Account) -> None:
        self.id = tenant_id
        self.weight = account.weight
        self.virtual_time = account.virtual_time
        self.running = account.running
        self.max_running = inf if account.max_running is None else account.max_running
        self.lanes: dict[Lane, deque[QueuedJob]] = {}

    def add(self, job: QueuedJob, lane: Lane) -> None:
        self.lanes.setdefault(lane, deque()).append(job)

    def rejoin(self, job: QueuedJob, lane: Lane) -> None:
        """Add a job whose pause is over in the order of deadlines."""
        insort(self.lanes.setdefault(lane, deque()), job, key=lambda other: (other.deadline_at, other.seq))

    def head(self, lanes: frozenset[Lane]) -> deque[QueuedJob] | None:
        """The lane, among these, whose first job has the earliest deadline."""
        ready = [jobs for lane, jobs in self.lanes.items() if lane in lanes and jobs]
        return min(ready, key=lambda jobs: (jobs[0].deadline_at, jobs[0].seq), default=None)


class Simulation:
    """The queue of some workers: the jobs on their lanes, and the accounts of the tenants."""

    def __init__(
        self, snapshot: Snapshot, lanes: Lanes, takes_turn: TakesTurn, workers: list[SimulatedWorker]
    ) -> None:
        self.workers = workers
        self.looks: list[Look] = []  # in the order in which they happen
        self.snapshot = snapshot
        self._lanes = lanes
        self._takes_turn = takes_turn
        self._slots: dict[JobId, Slot] = {}
        self._positions: dict[Lane, int] = {}
        self._tenants: dict[TenantId, _Tenant] = {}
        self._due: list[QueuedJob] = []
        self._ready: Counter[Lane] = Counter()  # jobs that wait for their tenant's turn
        self._ends = [(job.free_in, job.tenant_id) for job in snapshot.running]
        heapq.heapify(self._ends)
        self._waiting = 0
        self.served = {lane for worker in workers for lane in worker.lanes}
        self._queue_jobs()
        self._by_time = [(tenant.virtual_time, tenant.id) for tenant in self._tenants.values()]
        heapq.heapify(self._by_time)

    def _queue_jobs(self) -> None:
        listed = sorted(self.snapshot.queued, key=lambda job: (job.deadline_at, job.seq))
        tails = (job for tail in self.snapshot.tails for job in tail.expand())
        for job in chain(listed, tails):
            if (lane := self._lane_of(job)) not in self.served:
                continue
            self._waiting += 1
            if job.ready_in is None:
                self._ready[lane] += 1
                self._tenant(job.tenant_id).add(job, lane)
            else:
                self._due.append(job)
        self._due.sort(key=lambda job: job.ready_in or 0.0)

    def run(self) -> dict[JobId, Slot]:
        """Start every job that can start; returns the slots of all."""
        busy = [(worker.free_at, number) for number, worker in enumerate(self.workers)]
        heapq.heapify(busy)
        idle: list[int] = []
        at = 0.0
        while self._waiting and (at := self._next_moment(busy, idle, at)) < inf:
            self._release(at)
            self._end_pauses(at)
            while busy and busy[0][0] <= at:
                insort(idle, heapq.heappop(busy)[1])
            looking, idle = idle, []
            for number in looking:
                worker = self.workers[number]
                if (job := self._next(worker, at)) is not None:
                    heapq.heappush(busy, (self._start(worker, *job, at), number))
                else:
                    self.looks.append(Look(at, worker))
                    idle.append(number)
        # A lost job that no worker serves can hold its tenant's last place: the others never start.
        lanes = (lane for tenant in self._tenants.values() for lane in tenant.lanes.values())
        for blocked in chain(self._due, *lanes):
            self._add_slot(blocked, inf, inf)
        return self._slots

    def _lane_of(self, job: QueuedJob) -> Lane:
        return self._lanes.of(job.route, job.model, job.tenant_id)

    def _tenant(self, tenant_id: TenantId) -> _Tenant:
        if tenant_id not in self._tenants:
            account = self.snapshot.accounts.get(tenant_id, _NEW_TENANT)
            self._tenants[tenant_id] = _Tenant(tenant_id, account)
        return self._tenants[tenant_id]

    def _release(self, at: float) -> None:
        while self._ends and self._ends[0][0] <= at:
            _, tenant_id = heapq.heappop(self._ends)
            self._tenant(tenant_id).running -= 1

    def _next(self, worker: SimulatedWorker, at: float) -> tuple[QueuedJob, float] | None:
        """The job `lease` would give this worker now, and its start tag."""
        while (due := self._next_due(worker, at)) is not None:
            self._due.remove(due)
            if self._takes(worker, due, at):
                return due, -inf
        while (found := self._next_fair(worker)) is not None:
            tenant, jobs = found
            job = jobs.popleft()
            self._ready[self._lane_of(job)] -= 1
            tag, takes = tenant.virtual_time, self._takes(worker, job, at)
            if takes:
                tenant.virtual_time += job.share_seconds / tenant.weight
            if any(tenant.lanes.values()):
                heapq.heappush(self._by_time, (tenant.virtual_time, tenant.id))
            if takes:
                return job, tag
        return None

    def _end_pauses(self, at: float) -> None:
        due = takewhile(lambda job: (job.ready_in or 0.0) <= at, self._due)
        for job in [job for job in due if job.is_paused]:
            self._due.remove(job)
            tenant = self._tenant(job.tenant_id)
            if not any(tenant.lanes.values()):
                heapq.heappush(self._by_time, (tenant.virtual_time, tenant.id))
            lane = self._lane_of(job)
            self._ready[lane] += 1
            tenant.rejoin(job, lane)

    def _next_due(self, worker: SimulatedWorker, at: float) -> QueuedJob | None:
        for job in self._due:
            if (job.ready_in or 0.0) > at:
                return None
            tenant = self._tenant(job.tenant_id)
            has_room = job.was_running or tenant.running < tenant.max_running
            if has_room and self._lane_of(job) in worker.lanes:
                return job
        return None

    def _next_fair(self, worker: SimulatedWorker) -> tuple[_Tenant, deque[QueuedJob]] | None:
        if not any(self._ready[lane] for lane in worker.lanes):
            return None
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

    def _takes(self, worker: SimulatedWorker, job: QueuedJob, at: float) -> bool:
        takes = self._takes_turn(job, inf if worker.is_assumed else at)
        if not takes:
            self._waiting -= 1
            self._tenant(job.tenant_id).running -= job.was_running
        return takes

    def _start(self, worker: SimulatedWorker, job: QueuedJob, tag: float, at: float) -> float:
        self._waiting -= 1
        tenant = self._tenant(job.tenant_id)
        tenant.running += not job.was_running
        ends_at = worker.free_at = at + worker.seconds(job.busy_seconds)
        self.looks.append(Look(at, worker, tag, job, self._lane_of(job), ends_at))
        heapq.heappush(self._ends, (ends_at, job.tenant_id))
        if worker.is_assumed:
            self._add_slot(job, inf, inf)
        else:
            self._add_slot(job, at, ends_at)
        return ends_at

    def _add_slot(self, job: QueuedJob, starts_in: float, ends_in: float) -> None:
        lane = self._lane_of(job)
        self._positions[lane] = self._positions.get(lane, 0) + 1
        if job.job_id is not None:
            self._slots[job.job_id] = Slot(self._positions[lane], starts_in, ends_in)

    def _next_moment(self, busy: list[tuple[float, int]], idle: list[int], at: float) -> float:
        """When a worker is free, or idle ones should look again: a job ends, or can be leased again."""
        free_at = busy[0][0] if busy else inf
        if not idle:
            return free_at
        ends = self._ends[0][0] if self._ends else inf
        ready = (job.ready_in or 0.0 for job in self._due)
        return min(free_at, ends, next((moment for moment in ready if moment > at), inf))
