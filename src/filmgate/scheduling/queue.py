"""The JobQueue on one database, SQLite or PostgreSQL. Every change is one transaction."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict

import sqlalchemy as sa

from filmgate.database import Database
from filmgate.database.schema import jobs
from filmgate.errors import FilmgateError, JobActive, JobNotFound, KeyRefused, LeaseLost
from filmgate.jobs import (
    Failure,
    Idempotency,
    Job,
    JobId,
    JobState,
    Lease,
    Progress,
    Reason,
    Route,
    TenantId,
    Ticket,
)
from filmgate.scheduling import fair_share
from filmgate.scheduling.base import AttemptFailure, AttemptResult, HeartbeatReply, Move, Offer
from filmgate.scheduling.claims import find_fair, find_named, peek_due, peek_fair, take_due
from filmgate.scheduling.group_commit import GroupCommit
from filmgate.scheduling.idempotency import find_duplicate
from filmgate.scheduling.ready import Lane, ReadyJob, find_ready
from filmgate.scheduling.rerouting import move_jobs
from filmgate.scheduling.rows import (
    Row,
    first_job,
    from_clip,
    from_progress,
    open_prompt,
    seal_prompt,
    to_job,
    to_row,
)
from filmgate.scheduling.transitions import Transitions, lock_job
from filmgate.scheduling.wakers.base import Waker
from filmgate.settings import QueueSettings
from filmgate.store.keys.cache import DataKeys
from filmgate.store.keys.sealing import Sealer

CANCELLED = Failure(Reason.CANCELLED, "the video was cancelled")
# Jobs one call may fail, or lose to another worker, before it returns.
_MAX_TRIES = 20
_INSERT = sa.insert(jobs)
_HELD = (jobs.c.id == sa.bindparam("the_id"), jobs.c.fence == sa.bindparam("the_fence"))
_HEARTBEAT = (
    sa.update(jobs)
    .where(*_HELD, sa.text("state = 'running'"))
    .returning(jobs.c.seq, jobs.c.revision, jobs.c.state, jobs.c.stage, jobs.c.attempt, jobs.c.is_cancelling)
)
_HEARTBEAT_WITH_PROGRESS = _HEARTBEAT.values(revision=jobs.c.revision + 1)


class SqlQueue:
    """Jobs as rows: leased by fence, shared fairly between tenants, ended once.

    The waker tells workers about jobs they can lease. It is best effort: the database decides.
    """

    def __init__(self, database: Database, keys: DataKeys, settings: QueueSettings, waker: Waker) -> None:
        self._database = database
        self._sealer = Sealer(keys)
        self._settings = settings
        self._waker = waker
        self._group = GroupCommit(database)
        self._transitions = Transitions(database, self._sealer, settings)

    def enqueue(self, ticket: Ticket) -> Job:
        sealed_prompt = seal_prompt(self._sealer, ticket)

        def accept(connection: sa.Connection) -> Job:
            return self._accept(connection, ticket, sealed_prompt)

        if self._database.is_sqlite:
            job = self._group.run(accept)
        else:
            with self._database.write() as connection:
                job = accept(connection)
        if job.id == ticket.job_id:
            self._waker.notify(_to_ready(job))
        return job

    def _accept(self, connection: sa.Connection, ticket: Ticket, sealed_prompt: bytes) -> Job:
        account = fair_share.open_account(connection, ticket.tenant_id, ticket.share)
        now = self._database.now(connection)
        if (row := self._find_duplicate(connection, ticket.tenant_id, ticket.idempotency, now)) is not None:
            return to_job(row, self._sealer)
        fair_share.check_limits(connection, account, ticket, now)
        row = to_row(ticket, now, sealed_prompt)
        connection.execute(_INSERT, row)
        fair_share.admit(connection, account, row, now)
        if row["routing"] is not None:
            key = fair_share.routed_key(row, ticket.route, ticket.routing.reason)
            fair_share.count(connection, key, 1, ticket.predicted.gpu_seconds)
        return first_job(ticket, now)

    def find_duplicate(self, tenant_id: TenantId, idempotency: Idempotency) -> Job | None:
        if idempotency.key is None and not idempotency.is_retry:
            return None
        with self._database.read() as connection:
            now = self._database.now(connection)
            row = self._find_duplicate(connection, tenant_id, idempotency, now)
        return to_job(row, self._sealer) if row is not None else None

    def _find_duplicate(
        self, connection: sa.Connection, tenant_id: TenantId, idempotency: Idempotency, now: float
    ) -> Row | None:
        since = now - self._settings.retry_window_seconds
        return find_duplicate(connection, tenant_id, idempotency, since)

    def lease(self, offer: Offer) -> Lease | None:
        wakeup = self._waker.take(offer)
        if wakeup is None:
            return None
        try:
            lease = self._lease_named(offer, wakeup.job_id) if wakeup.job_id is not None else None
            lease = lease or self._lease_next(offer)
        except FilmgateError:
            self._waker.put_back(wakeup)
            raise
        self._waker.leased(wakeup, offer, lease)
        return lease

    def wait(self, offer: Offer, is_stopping: Callable[[], bool]) -> None:
        self._waker.wait(offer, is_stopping)

    def _lease_next(self, offer: Offer) -> Lease | None:
        awaited: TenantId | None = None
        for _ in range(_MAX_TRIES):
            with self._database.write() as connection:
                steady_now = self._database.steady_now(connection)
                if (peeked := peek_due(connection, offer, steady_now)) is not None:
                    row = take_due(connection, peeked, steady_now)
                    if row is not None and (lease := self._grant(connection, row, offer)) is not None:
                        return lease
                    continue
                if (row := find_fair(connection, offer, awaited)) is not None:
                    if (lease := self._grant(connection, row, offer)) is not None:
                        return lease
                    continue
                if (awaited := peek_fair(connection, offer)) is None:
                    return None
        return None

    def _lease_named(self, offer: Offer, job_id: JobId) -> Lease | None:
        """Lease this job if it can be leased now."""
        with self._database.write() as connection:
            row = find_named(connection, offer, job_id, self._database.steady_now(connection))
            return self._grant(connection, row, offer) if row is not None else None

    def _grant(self, connection: sa.Connection, row: Row, offer: Offer) -> Lease | None:
        """Lease a locked job; None when it must fail instead."""
        if (failure := self._find_failure(row)) is not None:
            self._transitions.fail(connection, row, failure)
            return None
        if row["wake_at"] is None:
            fair_share.charge(connection, row)
        seconds, now = self._settings.lease_seconds, self._database.now(connection)
        if row["started_at"] is None:
            fair_share.observe(connection, row["model"], "wait", now - row["created_at"])
        values = self._transitions.wake_in(connection, seconds) | from_progress(None)
        values |= {
            "fence": row["fence"] + 1,
            "attempt": row["attempt"] + 1,
            "started_at": now,
            "worker_id": offer.worker_id,
            "device": offer.device,
        }
        job = self._transitions.change(connection, row, JobState.RUNNING, values)
        return Lease(job=job, worker_id=offer.worker_id, fence=job.fence, seconds=seconds)

    def _find_failure(self, row: Row) -> Failure | None:
        """Why a job must fail instead of being leased."""
        if row["is_cancelling"]:
            return CANCELLED
        if row["state"] == JobState.RUNNING and row["attempt"] >= self._settings.max_attempts:
            return Failure(Reason.WORKER_LOST, f"the worker was lost in {row['attempt']} attempts")
        try:
            open_prompt(self._sealer, row)
        except KeyRefused:
            return Failure(Reason.KEY_REFUSED, "the tenant's encryption key was destroyed")
        return None

    def heartbeat(self, lease: Lease, progress: Progress | None = None) -> HeartbeatReply:
        with self._released_if_lost(lease), self._database.write(is_durable=False) as connection:
            values = self._transitions.wake_in(connection, lease.seconds)
            values |= {"the_id": lease.job.id, "the_fence": lease.fence}
            statement = _HEARTBEAT
            if progress is not None:
                statement, values = _HEARTBEAT_WITH_PROGRESS, values | from_progress(progress)
            row = connection.execute(statement, values).mappings().one_or_none()
            if row is None:
                raise _lost(lease)
            if progress is not None and progress.done == 0:
                self._transitions.note_stage(connection, row)
        self._waker.renewed(lease)
        return HeartbeatReply(is_cancelling=row["is_cancelling"])

    def complete(self, lease: Lease, result: AttemptResult) -> Job:
        with self._released_if_lost(lease), self._database.write() as connection:
            job = self._complete(connection, lease, result)
        self._waker.ended(lease, None)
        return job

    def _complete(self, connection: sa.Connection, lease: Lease, result: AttemptResult) -> Job:
        account, row = self._lock_leased(connection, lease)
        if row["fence"] == lease.fence and row["clip"] == from_clip(result.clip):
            return to_job(row, self._sealer)
        _require_held(row, lease)
        if row["is_cancelling"]:
            return self._transitions.fail(connection, row, CANCELLED)
        now, measured = self._database.now(connection), result.measured
        fair_share.settle(connection, account, measured.gpu_seconds - row["predicted_gpu_seconds"], now)
        fair_share.count_end(connection, row, JobState.COMPLETED, None, measured.gpu_seconds)
        fair_share.observe(connection, row["model"], "total", now - row["created_at"])
        for stage, seconds in asdict(measured).items():
            fair_share.observe(connection, row["model"], stage, seconds)
        values = self._transitions.final(now) | {
            "clip": from_clip(result.clip),
            "measured": json.dumps(asdict(measured)),
            "fraction": 1.0,
        }
        return self._transitions.change(connection, row, JobState.COMPLETED, values)

    def fail_attempt(self, lease: Lease, failed: AttemptFailure) -> Job:
        with self._released_if_lost(lease), self._database.write() as connection:
            job, delay = self._fail_attempt(connection, lease, failed)
        if job.state.is_final:
            self._waker.ended(lease, None)
        elif failed.uses_attempt:
            self._waker.ended(lease, delay)
        else:
            self._waker.returned(lease, _to_ready(job))
        return job

    def _fail_attempt(
        self, connection: sa.Connection, lease: Lease, failed: AttemptFailure
    ) -> tuple[Job, float]:
        _, row = self._lock_leased(connection, lease)
        _require_held(row, lease)
        if row["is_cancelling"]:
            return self._transitions.fail(connection, row, CANCELLED), 0.0
        is_last = failed.uses_attempt and row["attempt"] >= self._settings.max_attempts
        if is_last or not failed.is_retryable:
            return self._transitions.fail(connection, row, failed.failure), 0.0
        delay = self._settings.backoff_seconds * 2.0 ** (row["attempt"] - 1) if failed.uses_attempt else 0.0
        values = self._transitions.wake_in(connection, delay) | from_progress(None)
        values |= {"attempt": row["attempt"] - (not failed.uses_attempt), "worker_id": None}
        job = self._transitions.change(connection, row, JobState.QUEUED, values, failed.failure.reason)
        if failed.routing is None:
            return job, delay
        move_jobs(
            connection,
            [Move(job.tenant_id, job.id, Route.GPU, failed.routing)],
            self._database.now(connection),
        )
        return to_job(lock_job(connection, job.tenant_id, job.id)[1], self._sealer), delay

    def cancel(self, tenant_id: TenantId, job_id: JobId) -> Job:
        with self._database.write() as connection:
            _, row = lock_job(connection, tenant_id, job_id)
            state = JobState(row["state"])
            if state is JobState.QUEUED:
                return self._transitions.fail(connection, row, CANCELLED)
            if state is JobState.RUNNING and not row["is_cancelling"]:
                return self._transitions.change(connection, row, JobState.RUNNING, {"is_cancelling": True})
            return to_job(row, self._sealer)

    def remove(self, tenant_id: TenantId, job_id: JobId) -> None:
        with self._database.write() as connection:
            try:
                _, row = lock_job(connection, tenant_id, job_id)
            except JobNotFound:
                return
            if not JobState(row["state"]).is_final:
                raise JobActive("the video is queued or running; cancel it first")
            connection.execute(sa.delete(jobs).where(jobs.c.seq == row["seq"]))

    def reroute(self, moves: Sequence[Move]) -> int:
        with self._database.write() as connection:
            moved = move_jobs(connection, moves, self._database.now(connection))
        if moved:
            self.sweep()
        return moved

    def sweep(self) -> None:
        """Repair lost wake-ups. Idempotent; any process may call it at any time."""
        self._waker.sweep(self)

    def close(self) -> None:
        self._waker.close()

    def ready_jobs(self, limit: int) -> Mapping[Lane, Sequence[ReadyJob]]:
        """Jobs that can be leased now: what a waker compares its messages with."""
        with self._database.read() as connection:
            return find_ready(connection, self._database.steady_now(connection), limit)

    def fail_abandoned(self, job_id: JobId, failure: Failure) -> bool:
        """Fail a job unless it has ended or a worker holds it. Returns whether it failed."""
        with self._database.write() as connection:
            return self._transitions.fail_abandoned(connection, job_id, failure)

    @contextmanager
    def _released_if_lost(self, lease: Lease) -> Iterator[None]:
        try:
            yield
        except LeaseLost:
            self._waker.lost(lease)
            raise

    def _lock_leased(self, connection: sa.Connection, lease: Lease) -> tuple[Row, Row]:
        try:
            return lock_job(connection, lease.job.tenant_id, lease.job.id)
        except JobNotFound as exc:
            raise _lost(lease) from exc


def _require_held(row: Row, lease: Lease) -> None:
    if row["state"] != JobState.RUNNING or row["fence"] != lease.fence:
        raise _lost(lease)


def _lost(lease: Lease) -> LeaseLost:
    return LeaseLost(f"the lease of {lease.job.id} with fence {lease.fence} has ended")


def _to_ready(job: Job) -> ReadyJob:
    return ReadyJob(job.id, job.route, job.spec.model, job.fence)
