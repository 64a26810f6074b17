"""When each job will start and end: a pure simulation of what `lease` does from a snapshot on.

Queue position, ETA, back-pressure, routing and spill all read this forecast. It uses no clock and no I/O.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from math import inf

from filmgate.jobs import JobId, Route, TenantId
from filmgate.scheduling.lanes import Lane, Lanes
from filmgate.scheduling.simulation import SimulatedWorker, Simulation, Slot, TakesTurn, always
from filmgate.scheduling.snapshot import QueuedJob, Share, Snapshot
from filmgate.scheduling.workers import WorkerStatus

_NEW_TENANT = Share()


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
    _totals: "dict[tuple[Route, TenantId | None], _Total]" = field(default_factory=dict, repr=False)

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

    def backlog_seconds(self, route: Route, tenant_id: TenantId | None = None) -> float:
        """Predicted seconds of all queued jobs on a route, or of those that share GPUs with the tenant."""
        return self._total(route, tenant_id).queued_seconds

    def count_jobs(self, route: Route) -> int:
        """Queued and running jobs on a route."""
        return self._total(route).jobs

    def _count_workers(self, lane: Lane) -> int:
        return sum(worker.serves(lane) for worker in self._live)

    def _curve(self, lane: Lane) -> "_Curve":
        if lane not in self._curves:
            self._curves[lane] = _Curve([run for run in self._runs if run.serves(lane)], self._lanes)
        return self._curves[lane]

    def _total(self, route: Route, tenant_id: TenantId | None = None) -> "_Total":
        # Only a dedicated tenant has totals of its own: the others share one entry.
        key = (route, tenant_id if tenant_id in self.snapshot.dedicated else None)
        if tenant_id is None:
            return _add_up(self.snapshot, route, lambda _: True)
        if key not in self._totals:
            counts = partial(self._lanes.share_a_backlog, tenant_id)
            self._totals[key] = _add_up(self.snapshot, route, counts)
        return self._totals[key]

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
    unserved = sorted(lanes.queued() - served)
    assumed = [SimulatedWorker(frozenset({lane}), is_assumed=not expects_workers) for lane in unserved]
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


@dataclass(frozen=True, slots=True)
class _Total:
    jobs: int
    queued_seconds: float


def _add_up(snapshot: Snapshot, route: Route, counts: Callable[[TenantId], bool]) -> _Total:
    queued = [job.busy_seconds for job in snapshot.queued if job.route is route and counts(job.tenant_id)]
    tails = [tail for tail in snapshot.tails if tail.route is route and counts(tail.tenant_id)]
    running = sum(job.route is route and counts(job.tenant_id) for job in snapshot.running)
    return _Total(
        jobs=len(queued) + sum(tail.jobs for tail in tails) + running,
        queued_seconds=sum(queued) + sum(tail.gpu_seconds for tail in tails),
    )


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
