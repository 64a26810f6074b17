"""The spill: moves queued jobs that would be late to the provider, and back when the provider is unhealthy.

A job that lost its GPU worker counts as queued when no live worker can take it over (ADR 104).
Every server replica may run it. A pass reads a snapshot, simulates it and moves jobs; a job that changed
meanwhile is not moved, and two passes over the same queue decide alike.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isinf

from filmgate.jobs import ManagedPolicy, Route, RouteReason, Routing, TenantId
from filmgate.scheduling.base import JobQueue, JobReader, Move
from filmgate.scheduling.forecast import Forecast, LiveForecast, forecast
from filmgate.scheduling.router import NO_MANAGED_WORKER, Router, has_managed_worker
from filmgate.scheduling.routes import ON_GPU, Case, Choice, choose, reason_to_leave
from filmgate.scheduling.snapshot import QueuedJob, Snapshot
from filmgate.telemetry.logs import Log
from filmgate.tenants.registry import TenantRegistry

log = Log("routing")

# One transaction per batch: enqueue and lease never wait for a whole pass.
_MOVES_PER_BATCH = 2000
_MAX_JOBS = 20_000
_NOT_ALLOWED = ManagedPolicy()


class Spiller:
    """Moves queued jobs between routes. Call `run` every few seconds."""

    def __init__(
        self,
        router: Router,
        queue: JobQueue,
        reader: JobReader,
        live: LiveForecast,
        tenants: TenantRegistry,
    ) -> None:
        self._router = router
        self._queue = queue
        self._reader = reader
        self._live = live
        self._tenants = tenants

    def run(self) -> int:
        """One pass over the queue. Returns how many jobs changed their route."""
        self._router.managed.refresh()
        current = self._live.refresh()
        moved = self._move(self._take_back(current))
        policies = {tenant.id: tenant.managed for tenant in self._tenants.tenants()}
        if any(policy.is_allowed for policy in policies.values()) and not self._is_calm(current):
            moved += self._move(self._spill(policies))
        return moved

    def _take_back(self, current: Forecast) -> Sequence[Move]:
        """Jobs that wait for an unhealthy provider, or for a managed worker. One may stay to probe."""
        health, has_worker = self._router.managed.health, has_managed_worker(current)
        if health.is_healthy and has_worker:
            return ()
        snapshot = self._reader.snapshot(has_specs=True, limit=_MAX_JOBS)
        message = f"the provider's breaker is {health.state}" if has_worker else NO_MANAGED_WORKER[1]
        why = Routing(RouteReason.PROVIDER_UNHEALTHY, message, decided_at=snapshot.now)
        waiting = [job for job in _movable(snapshot) if job.route is Route.MANAGED]
        probes = 1 if health.can_probe and has_worker else 0
        return [_move_to(job, Route.GPU, why) for job in waiting[probes:]]

    def _is_calm(self, current: Forecast) -> bool:
        """Every queued job will be on time and none is old: no specs need to be read."""
        settings, snapshot = self._router.settings, current.snapshot
        if any(tail.route is Route.GPU for tail in snapshot.tails):
            return False
        return not any(
            reason_to_leave(self._to_case(snapshot, job, current.starts_in(job), _NOT_ALLOWED), settings)
            for job in snapshot.queued
            if job.route is Route.GPU
        )

    def _spill(self, policies: Mapping[TenantId, ManagedPolicy]) -> Sequence[Move]:
        snapshot = self._reader.snapshot(has_specs=True, limit=_MAX_JOBS)
        before = forecast(snapshot, expects_workers=self._live.expects_workers)
        movable = {job.job_id for job in _movable(snapshot)}
        moves: list[Move] = []
        sent = 0
        may_probe = not any(job.route is Route.MANAGED for job in snapshot.queued)

        def takes_turn(job: QueuedJob, starts_in: float) -> bool:
            nonlocal sent, may_probe
            if job.route is not Route.GPU or job.job_id not in movable:
                return True
            if job.was_running and not isinf(starts_in):
                return True  # a live worker continues from its latents checkpoint
            case = self._to_case(snapshot, job, starts_in, policies.get(job.tenant_id, _NOT_ALLOWED))
            choice = self._choose(job, replace(case, may_probe=may_probe), before, sent)
            has_new_reason = choice.routing.reason is not job.reason and not job.was_running
            if choice.route is Route.MANAGED or has_new_reason:
                moves.append(_move_to(job, choice.route, choice.routing))
            if choice.route is Route.MANAGED:
                sent, may_probe = sent + 1, False
                return False
            return True

        forecast(snapshot, expects_workers=self._live.expects_workers, takes_turn=takes_turn)
        return moves

    def _to_case(self, snapshot: Snapshot, job: QueuedJob, starts_in: float, policy: ManagedPolicy) -> Case:
        return Case(
            now=snapshot.now,
            deadline_at=job.deadline_at,
            gpu_wait_seconds=starts_in,
            gpu_work_seconds=job.busy_seconds + job.upload_seconds,
            policy=policy,
            waited_seconds=snapshot.now - job.created_at,
        )

    def _choose(self, job: QueuedJob, case: Case, before: Forecast, sent: int) -> Choice:
        if reason_to_leave(case, self._router.settings) is None:
            return ON_GPU
        assert job.spec is not None, "a movable job has its spec"
        quote = self._router.quote(job.spec, case.policy, before, sent)
        return choose(case, quote, self._router.settings)

    def _move(self, moves: Sequence[Move]) -> int:
        moved = 0
        for start in range(0, len(moves), _MOVES_PER_BATCH):
            moved += self._queue.reroute(moves[start : start + _MOVES_PER_BATCH])
        for (route, reason), jobs in Counter((move.route, move.routing.reason) for move in moves).items():
            log.info("queued jobs routed", route=route, reason=reason, jobs=jobs)
        return moved


def return_to_gpu(queue: JobQueue, reader: JobReader) -> int:
    """Without a provider: move the jobs that wait for a managed worker, unless one is alive, to local GPUs.

    Returns how many were moved: some of each tenant and model.
    """
    backlog = reader.backlog()
    is_served = any(worker.route is Route.MANAGED for worker in backlog.workers)
    if is_served or not any(count.route is Route.MANAGED for count in backlog.counts):
        return 0
    snapshot = reader.snapshot()
    reason, message = NO_MANAGED_WORKER
    why = Routing(reason, message, decided_at=snapshot.now)
    waiting = [job for job in snapshot.queued if job.route is Route.MANAGED and not job.was_running]
    return queue.reroute([_move_to(job, Route.GPU, why) for job in waiting]) if waiting else 0


def _movable(snapshot: Snapshot) -> list[QueuedJob]:
    """Jobs that may change their route, by deadline: queued jobs and jobs of lost GPU workers."""
    movable = [job for job in snapshot.queued if job.spec is not None and _may_move(job)]
    return sorted(movable, key=lambda job: (job.deadline_at, job.seq))


def _may_move(job: QueuedJob) -> bool:
    """A job of a lost GPU worker may move. A lost managed worker's job stays with its provider."""
    is_lost = job.route is Route.GPU and job.ready_in == 0
    return job.reason is not RouteReason.RETURNED and (not job.was_running or is_lost)


def _move_to(job: QueuedJob, route: Route, routing: Routing) -> Move:
    assert job.job_id is not None
    return Move(job.tenant_id, job.job_id, route, routing)
