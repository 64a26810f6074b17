"""The JobQueue on one database, SQLite or PostgreSQL. Every change is one transaction."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import sqlalchemy as sa

from filmgate.audit.records import SYSTEM, Actor
from filmgate.database import Database
from filmgate.database.schema import invocations, jobs, removed_invocations
from filmgate.errors import (
    FilmgateError,
    JobActive,
    JobNotFound,
    KeyRefused,
    KeyringUnavailable,
    LeaseLost,
)
from filmgate.jobs import (
    Failure,
    Idempotency,
    Job,
    JobId,
    JobState,
    Lease,
    Progress,
    Route,
    TenantId,
    Ticket,
    VideoSpec,
)
from filmgate.scheduling import fair_share
from filmgate.scheduling.acceptance import Acceptance
from filmgate.scheduling.base import AttemptFailure, AttemptResult, HeartbeatReply, Move, Offer
from filmgate.scheduling.claims import Channel, ReadyJob, find_ready
from filmgate.scheduling.leasing import CANCELLED, Leasing
from filmgate.scheduling.rerouting import lock_accounts, lock_lost, move_jobs
from filmgate.scheduling.rows import (
    IS_DUE,
    Row,
    from_progress,
    lease_lost,
    open_prompt,
    to_clip,
    to_job,
)
from filmgate.scheduling.transitions import (
    Transitions,
    cancelled_entry,
    deleted_entry,
    lock_job,
    work_done,
)
from filmgate.scheduling.wakers.base import Waker
from filmgate.settings import QueueSettings
from filmgate.store.keys.data_keys import DataKeys, Sealer
from filmgate.telemetry.logs import Log

log = Log("queue")

_KEEP_INVOCATION = sa.insert(removed_invocations).from_select(
    ["provider", "invocation", "job_id", "updated_at"],
    sa.select(
        invocations.c.provider,
        invocations.c.invocation,
        sa.bindparam("the_id", type_=sa.Text).label("job_id"),
        invocations.c.updated_at,
    ).where(
        invocations.c.job_seq == sa.bindparam("the_seq"),
        invocations.c.invocation.is_not(None),
        invocations.c.state != "closed",
    ),
)
_ENDED_LEASE = sa.select(jobs.c.seq).where(jobs.c.seq == sa.bindparam("the_seq"), IS_DUE)
_HELD = (jobs.c.id == sa.bindparam("the_id"), jobs.c.fence == sa.bindparam("the_fence"))
_HEARTBEAT = (
    sa.update(jobs)
    .where(*_HELD, sa.text("state = 'running'"))
    .returning(jobs.c.seq, jobs.c.revision, jobs.c.state, jobs.c.stage, jobs.c.attempt, jobs.c.is_cancelling)
)
# A job starts with its first progress: a worker may lease it while the job before is still decoded.
_HEARTBEAT_WITH_PROGRESS = _HEARTBEAT.values(
    revision=jobs.c.revision + 1,
    started_at=sa.case((jobs.c.stage.is_(None), sa.bindparam("the_time")), else_=jobs.c.started_at),
)


class SqlQueue:
    """Jobs as rows: leased by fence, shared fairly between tenants, ended once.

    The waker wakes workers that can lease a job. It is best effort: the database decides.
    """

    def __init__(
        self,
        database: Database,
        keys: DataKeys,
        settings: QueueSettings,
        waker: Waker,
        may_lease: Callable[[], bool] = lambda: True,
        usd_per_gpu_hour: float = 0.0,
    ) -> None:
        self._may_lease = may_lease
        self._database = database
        self._sealer = Sealer(keys)
        self._settings = settings
        self._waker = waker
        self._has_answered = True  # the last `lease` was neither refused nor ended by an outage
        self._acceptance = Acceptance(database, self._sealer, settings.retry_window_seconds)
        self.digests = self._acceptance.digests
        self._transitions = Transitions(database, settings, usd_per_gpu_hour)
        self._leasing = Leasing(database, self._sealer, settings, self._transitions, self.fail_attempt)

    def enqueue(self, ticket: Ticket, actor: Actor = SYSTEM) -> Job:
        row = self._acceptance.accept(ticket, actor)
        if row["id"] != ticket.job_id:
            return self._read(row)
        job = _to_job(row, ticket.spec)
        self._waker.notify(_to_ready(job))
        return job

    def find_duplicate(self, tenant_id: TenantId, idempotency: Idempotency) -> Job | None:
        if idempotency.key is None and not idempotency.is_retry:
            return None
        row = self._acceptance.find(tenant_id, idempotency)
        return self._read(row) if row is not None else None

    def lease(self, offer: Offer) -> Lease | None:
        self._has_answered = False
        lease = self._lease(offer) if (may_lease := self._may_lease()) else None
        self._has_answered = may_lease
        return lease

    def _lease(self, offer: Offer) -> Lease | None:
        if (wakeup := self._waker.take(offer)) is None:
            return None
        try:
            lease = self._leasing.named(offer, wakeup.job_id) if wakeup.job_id is not None else None
            lease = lease or self._leasing.next(offer)
        except FilmgateError:
            self._waker.put_back(wakeup)
            raise
        self._waker.leased(wakeup, offer, lease)
        return lease

    def wait(self, offer: Offer, is_stopping: Callable[[], bool]) -> None:
        if self._has_answered:
            self._waker.wait(offer, is_stopping)
        elif not is_stopping():
            # The waker keeps its wake-ups until they can be used, so it would return immediately.
            time.sleep(self._settings.poll_seconds)

    def _read(self, row: Row) -> Job:
        """The job of a row, after the transaction. Its prompt is "" while the tenant's key cannot be used."""
        try:
            return to_job(row, open_prompt(self._sealer, row))
        except (KeyRefused, KeyringUnavailable) as exc:
            log.warning("a prompt could not be decrypted", code=exc.code, job_id=row["id"])
            return to_job(row)

    def heartbeat(self, lease: Lease, progress: Progress | None = None) -> HeartbeatReply:
        with self._released_if_lost(lease), self._database.write(is_durable=False) as connection:
            values = self._transitions.wake_in(connection, lease.seconds)
            values |= {"the_id": lease.job.id, "the_fence": lease.fence}
            statement = _HEARTBEAT
            if progress is not None:
                values |= from_progress(progress) | {"the_time": self._database.moment(connection).now}
                statement = _HEARTBEAT_WITH_PROGRESS
            row = connection.execute(statement, values).mappings().one_or_none()
            if row is None:
                raise lease_lost(lease)
            if progress is not None and progress.done == 0:
                self._transitions.note_stage(connection, row)
        self._waker.renewed(lease)
        return HeartbeatReply(is_cancelling=row["is_cancelling"])

    def complete(self, lease: Lease, result: AttemptResult) -> Job:
        with self._released_if_lost(lease), self._database.write() as connection:
            row = self._complete(connection, lease, result)
        self._waker.ended(lease, None)
        return _to_job(row, lease.job.spec)

    def _complete(self, connection: sa.Connection, lease: Lease, result: AttemptResult) -> Row:
        row = self._lock_leased(connection, lease)
        if row["fence"] == lease.fence and to_clip(row["clip"]) == result.clip:
            return row
        _require_held(row, lease)
        if row["is_cancelling"]:
            return self._transitions.fail(connection, row, CANCELLED, result.measured.gpu_seconds)
        return self._transitions.complete(connection, row, result)

    def fail_attempt(self, lease: Lease, failed: AttemptFailure) -> Job:
        with self._released_if_lost(lease), self._database.write() as connection:
            row, delay = self._fail_attempt(connection, lease, failed)
        job = _to_job(row, lease.job.spec)
        if job.state.is_final:
            self._waker.ended(lease, None)
        elif failed.uses_attempt:
            self._waker.ended(lease, delay)
        else:
            self._waker.returned(lease, _to_ready(job), delay)
        return job

    def _fail_attempt(
        self, connection: sa.Connection, lease: Lease, failed: AttemptFailure
    ) -> tuple[Row, float]:
        row = self._lock_leased(connection, lease)
        _require_held(row, lease)
        if row["is_cancelling"]:
            return self._transitions.fail(connection, row, CANCELLED), 0.0
        is_last = failed.uses_attempt and row["attempt"] >= self._settings.max_attempts
        if is_last or not failed.is_retryable:
            return self._transitions.fail(connection, row, failed.failure), 0.0
        delay = failed.retry_seconds
        if failed.uses_attempt:
            delay = self._settings.backoff_seconds * 2.0 ** (row["attempt"] - 1)
        elif delay > 0:
            # The tenant pays for the next start again, so for this one only what was rendered.
            fair_share.charge(connection, row, work_done(row) - row["predicted_gpu_seconds"])
        values = self._transitions.wake_in(connection, delay) | from_progress(None)
        values |= {"attempt": row["attempt"] - (not failed.uses_attempt), "worker_id": None}
        row = self._transitions.change(connection, row, JobState.QUEUED, values, failed.failure.reason)
        if failed.routing is None:
            return row, delay
        job = lease.job
        move = Move(job.tenant_id, job.id, Route.GPU, failed.routing)
        move_jobs(connection, [move], self._database.moment(connection).now)
        return lock_job(connection, job.tenant_id, job.id), delay

    def cancel(self, tenant_id: TenantId, job_id: JobId, actor: Actor = SYSTEM) -> Job:
        with self._database.write() as connection:
            row = lock_job(connection, tenant_id, job_id)
            entry = cancelled_entry(row, actor)
            if self._is_held(connection, row):
                if not row["is_cancelling"]:
                    values = {"is_cancelling": True}
                    row = self._transitions.change(connection, row, JobState.RUNNING, values, entry=entry)
            elif not JobState(row["state"]).is_final:
                if not row["is_cancelling"]:
                    self._transitions.audit(connection, row, entry)
                row = self._transitions.fail(connection, row, CANCELLED)
        return self._read(row)

    def remove(self, tenant_id: TenantId, job_id: JobId, actor: Actor = SYSTEM) -> None:
        with self._database.write() as connection:
            try:
                row = lock_job(connection, tenant_id, job_id)
            except JobNotFound:
                return
            if not JobState(row["state"]).is_final:
                raise JobActive("the video is queued or running; cancel it first")
            # The provider may still hold a copy: its record outlives the job until the copy is deleted.
            connection.execute(_KEEP_INVOCATION, {"the_seq": row["seq"], "the_id": job_id})
            connection.execute(sa.delete(jobs).where(jobs.c.seq == row["seq"]))
            self._transitions.audit(connection, row, deleted_entry(row, actor))

    def reroute(self, moves: Sequence[Move]) -> int:
        with self._database.write() as connection:
            lock_accounts(connection, moves)
            for row in lock_lost(connection, moves, self._database.steady_now(connection)):
                self._leasing.release(connection, row)
            moved = move_jobs(connection, moves, self._database.moment(connection).now)
        if moved:
            self.sweep()
        return moved

    def sweep(self) -> None:
        """Repair lost wake-ups. Idempotent; any process may call it at any time."""
        self._waker.sweep(self)

    def close(self) -> None:
        self._waker.close()

    def ready_jobs(self, limit: int) -> Mapping[Channel, Sequence[ReadyJob]]:
        """Jobs that can be leased now: what a waker compares its messages with."""
        with self._database.read() as connection:
            return find_ready(connection, self._database.steady_now(connection), limit)

    def fail_abandoned(self, job_id: JobId, failure: Failure) -> bool:
        """Fail a job unless it has ended or a worker holds it. Returns whether it failed."""
        owner = sa.select(jobs.c.tenant_id).where(jobs.c.id == job_id)
        with self._database.write() as connection:
            if (tenant_id := connection.execute(owner).scalar_one_or_none()) is None:
                return False
            row = lock_job(connection, tenant_id, job_id)
            if JobState(row["state"]).is_final or self._is_held(connection, row):
                return False
            self._transitions.fail(connection, row, failure)
            return True

    def _is_held(self, connection: sa.Connection, row: Row) -> bool:
        """Whether a worker has a locked job: it runs, and its lease has not ended."""
        now = {"the_seq": row["seq"], "steady_now": self._database.steady_now(connection)}
        return row["state"] == JobState.RUNNING and connection.execute(_ENDED_LEASE, now).first() is None

    @contextmanager
    def _released_if_lost(self, lease: Lease) -> Iterator[None]:
        try:
            yield
        except LeaseLost:
            self._waker.lost(lease)
            raise

    def _lock_leased(self, connection: sa.Connection, lease: Lease) -> Row:
        try:
            return lock_job(connection, lease.job.tenant_id, lease.job.id)
        except JobNotFound as exc:
            raise lease_lost(lease) from exc


def _require_held(row: Row, lease: Lease) -> None:
    if row["state"] != JobState.RUNNING or row["fence"] != lease.fence:
        raise lease_lost(lease)


def _to_job(row: Row, known: VideoSpec) -> Job:
    """The job of a row with the texts of a known spec: the keyring is not needed."""
    return to_job(row, (known.prompt, known.negative_prompt))


def _to_ready(job: Job) -> ReadyJob:
    return ReadyJob(job.id, job.route, job.spec.model, job.fence)
