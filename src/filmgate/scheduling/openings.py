"""When a new job would start, read from a simulation that does not contain it."""

import heapq
from bisect import bisect_right
from math import inf
from typing import NamedTuple

from filmgate.jobs import TenantId
from filmgate.scheduling.simulation import Lane, SimulatedWorker, Simulation
from filmgate.scheduling.snapshot import Account


class Opening(NamedTuple):
    """A moment at which a worker could start a new job, and the position of that job in its lane."""

    at: float
    worker: SimulatedWorker
    position: int


class Openings:
    """The openings for one tenant's new job on one lane.

    There is one whenever a worker of the lane looks for a job, the tenant may run one more, and the new job
    comes before what the worker has found: a job of a tenant that is served later, or no job at all. If the
    worker has found a job of the same tenant, the deadlines decide.
    """

    def __init__(self, simulation: Simulation, lane: Lane, tenant_id: TenantId) -> None:
        snapshot = simulation.snapshot
        account = snapshot.accounts.get(tenant_id, Account())
        self._max_running = inf if account.max_running is None else account.max_running
        self._running = account.running
        self._has_room_at = 0.0  # when the tenant last became able to run one more job
        self._ends = [job.free_in for job in snapshot.running if job.tenant_id == tenant_id]
        heapq.heapify(self._ends)
        # Own jobs that start on the lane's workers, and the latest deadline among each and those before it.
        self._own: list[Opening] = []
        self._latest: list[float] = []
        self._last = self._replay(simulation, lane, tenant_id, account)

    def first(self, deadline_at: float) -> Opening:
        """Where a job with this deadline starts: instead of the first own job with a later one."""
        place = bisect_right(self._latest, deadline_at)
        return self._own[place] if place < len(self._own) else self._last

    def _replay(self, simulation: Simulation, lane: Lane, tenant_id: TenantId, account: Account) -> Opening:
        """Follow the tenant through the simulation to the first opening for any deadline."""
        virtual_time = simulation.snapshot.joined_virtual_time(tenant_id)
        workers = [worker for worker in simulation.workers if lane in worker.lanes]
        serving, position = set(workers), 1
        for at, worker, tag, job, its_lane, ends_at in simulation.looks:
            self._release(at)
            is_own = job is not None and job.tenant_id == tenant_id
            # Jobs that bypass fair share have no tag that is as high as any virtual time.
            if tag >= virtual_time and worker in serving and self._running < self._max_running:
                opening = Opening(at, worker, position)
                if job is None or tag > virtual_time or job.tenant_id > tenant_id:
                    return opening
                if is_own and job.job_id is not None:  # a new job comes after the tail of its own lane
                    self._own.append(opening)
                    self._latest.append(max([job.deadline_at, *self._latest[-1:]]))
            position += its_lane == lane
            if is_own and job is not None:
                self._running += not job.was_running
                heapq.heappush(self._ends, ends_at)
                if tag > -inf:
                    virtual_time = tag + job.share_seconds / account.weight
        free = min(workers, key=_free_at)
        while self._ends and self._running >= self._max_running:
            self._release_next()
        if self._running >= self._max_running:
            self._has_room_at = inf
        return Opening(max(free.free_at, self._has_room_at), free, position)

    def _release(self, at: float) -> None:
        while self._ends and self._ends[0] <= at:
            self._release_next()

    def _release_next(self) -> None:
        end = heapq.heappop(self._ends)
        if self._running == self._max_running:
            self._has_room_at = end
        self._running -= 1


def _free_at(worker: SimulatedWorker) -> float:
    return worker.free_at
