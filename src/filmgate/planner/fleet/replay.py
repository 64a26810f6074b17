"""Replays arrivals on a fleet that KEDA scales: late jobs, GPU-hours and cost.

Jobs start as Filmgate's queue leases them: the tenant with the least virtual time first. A new worker needs
a node, unless one is still there, and loads its model. A worker that is removed finishes its job.
"""

from bisect import insort
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from filmgate.planner.fleet.keda import SYNC_SECONDS, Autoscaler, KedaSettings


@dataclass(frozen=True, slots=True)
class Job:
    """One job: when it arrives, for whom, and how long it keeps a GPU busy."""

    at: float
    tenant: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Machines:
    """How long a worker takes to start, how long an empty node stays, and what a GPU-hour costs."""

    node_seconds: float = 120.0
    load_seconds: float = 60.0
    keep_seconds: float = 600.0
    usd_per_hour: float = 3.36


@dataclass(frozen=True, slots=True)
class Replay:
    """The result of a replay. `starts` are in order of `jobs`; `series` has (time, workers, waiting jobs)."""

    jobs: tuple[Job, ...]
    starts: tuple[float, ...]
    gpu_hours: float
    usd: float
    nodes_started: int
    series: tuple[tuple[float, int, int], ...]

    def late(self, slo_seconds: float, tenant: str = "") -> int:
        """Jobs that ended later than `slo_seconds` after they arrived."""
        return sum(
            start + job.seconds - job.at > slo_seconds
            for job, start in zip(self.jobs, self.starts, strict=True)
            if tenant in ("", job.tenant)
        )


@dataclass(slots=True)
class _Tenant:
    virtual_time: float = 0.0
    waiting: deque[int] = field(default_factory=deque)


class _Queue:
    """Fair share between tenants; in order of arrival within one."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = jobs
        self._tenants: dict[str, _Tenant] = defaultdict(_Tenant)
        self._virtual_now = 0.0
        self.waiting = 0
        self.backlog_seconds = 0.0

    def add(self, number: int) -> None:
        tenant = self._tenants[self._jobs[number].tenant]
        if not tenant.waiting:
            tenant.virtual_time = max(tenant.virtual_time, self._virtual_now)
        tenant.waiting.append(number)
        self.waiting += 1
        self.backlog_seconds += self._jobs[number].seconds

    def take(self) -> int:
        _, name = min((one.virtual_time, name) for name, one in self._tenants.items() if one.waiting)
        tenant = self._tenants[name]
        number = tenant.waiting.popleft()
        seconds = self._jobs[number].seconds
        self._virtual_now = tenant.virtual_time
        tenant.virtual_time += seconds
        self.waiting -= 1
        self.backlog_seconds -= seconds
        return number


@dataclass(slots=True)
class _Worker:
    ready_at: float
    busy_until: float = 0.0
    is_leaving: bool = False


class _Fleet:
    """Workers and the nodes they run on, one GPU each."""

    def __init__(self, machines: Machines, warm: int, begin: float = 0.0) -> None:
        self._machines = machines
        self.workers = [_Worker(0.0) for _ in range(warm)]
        self._empty: list[float] = []  # when each empty node became empty, the oldest first
        self.node_seconds = 0.0
        self.nodes_started = warm
        self._nodes = warm
        self._now = begin

    @property
    def staying(self) -> list[_Worker]:
        return [worker for worker in self.workers if not worker.is_leaving]

    def advance(self, now: float) -> None:
        """Pay the nodes until now, then free those of workers that have left, and remove empty ones."""
        self.node_seconds += self._nodes * (now - self._now)
        self._now = now
        for worker in [one for one in self.workers if one.is_leaving and one.busy_until <= now]:
            self.workers.remove(worker)
            insort(self._empty, max(worker.busy_until, worker.ready_at))
        while self._empty and self._empty[0] + self._machines.keep_seconds <= now:
            self._empty.pop(0)
            self._nodes -= 1

    def count_running(self, now: float) -> int:
        return sum(worker.busy_until > now for worker in self.workers)

    def resize(self, count: int, now: float) -> list[float]:
        """Start or remove workers. Returns when each new one is ready."""
        staying = self.staying
        new = [_Worker(now + self._start_seconds()) for _ in range(count - len(staying))]
        self.workers += new
        # Kubernetes removes pods that are not ready first, then the newest ones.
        newest_first = sorted(staying, key=lambda one: one.ready_at, reverse=True)
        for worker in newest_first[: max(0, len(staying) - count)]:
            worker.is_leaving = True
            worker.busy_until = max(worker.busy_until, now)
        return [worker.ready_at for worker in new]

    def _start_seconds(self) -> float:
        if self._empty:
            self._empty.pop()  # the node that became empty last
            return self._machines.load_seconds
        self._nodes += 1
        self.nodes_started += 1
        return self._machines.node_seconds + self._machines.load_seconds

    def free(self, now: float) -> _Worker | None:
        ready = [one for one in self.staying if one.ready_at <= now and one.busy_until <= now]
        return min(ready, key=lambda one: one.ready_at, default=None)


_ENDED, _ARRIVAL, _READY, _SYNC = range(4)


class _Clock:
    """Events in order of time; those of one moment together."""

    def __init__(self, jobs: Sequence[Job], begin: float) -> None:
        self._events = [(job.at, _ARRIVAL, number) for number, job in enumerate(jobs)]
        self._events.append((begin, _SYNC, 0))
        heapify(self._events)

    def add(self, at: float, kind: int, number: int = 0) -> None:
        heappush(self._events, (at, kind, number))

    def next(self) -> tuple[float, list[tuple[int, int]]]:
        now, kind, number = heappop(self._events)
        found = [(kind, number)]
        while self._events and self._events[0][0] == now:
            found.append(heappop(self._events)[1:])
        return now, found


def replay(jobs: Sequence[Job], settings: KedaSettings, machines: Machines) -> Replay:
    """Runs from the hour of the first job until every job has ended. `jobs` are in order of arrival."""
    begin = jobs[0].at // 3600 * 3600
    queue, fleet = _Queue(jobs), _Fleet(machines, settings.min_replicas, begin)
    scaler, clock = Autoscaler(settings), _Clock(jobs, begin)
    starts, series = [0.0] * len(jobs), []
    open_jobs = len(jobs)
    while open_jobs:
        now, events = clock.next()
        fleet.advance(now)
        for kind, number in events:
            if kind == _ENDED:
                open_jobs -= 1
            elif kind == _ARRIVAL:
                queue.add(number)
            elif kind == _SYNC:
                count = scaler.decide(
                    now, queue.backlog_seconds, fleet.count_running(now), len(fleet.staying)
                )
                for ready_at in fleet.resize(count, now):
                    clock.add(ready_at, _READY)
                series.append((now, len(fleet.workers), queue.waiting))
                clock.add(now + SYNC_SECONDS, _SYNC)
        while queue.waiting and (free := fleet.free(now)) is not None:
            started = queue.take()
            starts[started] = now
            free.busy_until = now + jobs[started].seconds
            clock.add(free.busy_until, _ENDED)
    hours = fleet.node_seconds / 3600
    usd = hours * machines.usd_per_hour
    return Replay(tuple(jobs), tuple(starts), hours, usd, fleet.nodes_started, tuple(series))
