"""The JobQueue on one database, SQLite or PostgreSQL. Every change is one transaction."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace

import sqlalchemy as sa

from filmgate.audit.chain import append
from filmgate.audit.records import SYSTEM, Actor, Entry
from filmgate.database import Database
from filmgate.database.schema import invocations, jobs, removed_invocations
from filmgate.errors import (
    FilmgateError,
    JobActive,
    JobNotFound,
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
)
from filmgate.scheduling import auditing, fair_share
from filmgate.scheduling.base import AttemptFailure, AttemptResult, HeartbeatReply, Move, Offer
from filmgate.scheduling.body_digests import BodyDigests
from filmgate.scheduling.durations import observe_completion
from filmgate.scheduling.group_commit import GroupCommit
from filmgate.scheduling.history import EndOfJob, record_end
from filmgate.scheduling.idempotency import find_duplicate
from filmgate.scheduling.leasing import CANCELLED, Leasing
from filmgate.scheduling.ready import Lane, ReadyJob, find_ready
from filmgate.scheduling.rerouting import lock_lost, move_jobs
from filmgate.scheduling.rows import (
    Row,
    StoredPrompt,
    first_job,
    from_clip,
    from_progress,
    seal_prompt,
    to_job,
    to_row,
)
from filmgate.scheduling.transitions import Transitions, lock_job
from filmgate.scheduling.wakers.base import Waker
from filmgate.settings import QueueSettings
from filmgate.slo.counts import count_job
from filmgate.store.keys.cache import DataKeys
from filmgate.store.keys.sealing import Sealer
from filmgate.telemetry.logs import Log

log = Log("queue")

_INSERT = sa.insert(jobs)
_KEEP_INVOCATION = sa.insert(removed_invocations).from_select(
    ["provider", "invocation", "job_id", "started_at", "updated_at"],
    sa.select(
        invocations.c.provider,
        invocations.c.invocation,
        sa.bindparam("the_id", type_=sa.Text).label("job_id"),
        invocations.c.started_at,
        invocations.c.updated_at,
    ).where(
        invocations.c.job_seq == sa.bindparam("the_seq"),
        invocations.c.invocation.is_not(None),
        invocations.c.state != "closed",
    ),
)
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

    The waker tells workers about jobs they can lease. It is best effort: the database decides.
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
        self._usd_per_gpu_hour = usd_per_gpu_hour
        self._database = database
        self._sealer = Sealer(keys)
        self._settings = settings
        self._waker = waker
        self._group = GroupCommit(database)
        self.digests = BodyDigests(database, self._sealer)
        self._transitions = Transitions(database, settings)
        self._leasing = Leasing(database, self._sealer, settings, self._transitions, self.fail_attempt)

    def enqueue(self, ticket: Ticket, actor: Actor = SYSTEM) -> Job:
        sealed = seal_prompt(self._sealer, ticket)
        protected = self.digests.protect(ticket.tenant_id, ticket.idempotency)
        prompt = StoredPrompt(sealed, self.digests.digest_prompt(ticket.tenant_id, ticket.spec.prompt))
        ticket = replace(ticket, idempotency=protected)
        entry = auditing.created(ticket, actor, prompt.hmac)

        def accept(connection: sa.Connection) -> Job | Row:
            return self._accept(connection, ticket, prompt, entry)

        if self._database.is_sqlite:
            accepted = self._group.run(accept)
        else:
            with self._database.write() as connection:
                accepted = accept(connection)
        if not isinstance(accepted, Job):
            return self._read(accepted)
        self._waker.notify(_to_ready(accepted))
        return accepted

    def _accept(
        self, connection: sa.Connection, ticket: Ticket, prompt: StoredPrompt, entry: Entry
    ) -> Job | Row:
        """The new job, or the row of the job that this request created before."""
        account = fair_share.open_account(connection, ticket.tenant_id, ticket.share)
        now = self._database.now(connection)
        if (row := self._find_duplicate(connection, ticket.tenant_id, ticket.idempotency, now)) is not None:
            return row
        fair_share.check_limits(connection, account, ticket, now)
        row = to_row(ticket, now, prompt)
        connection.execute(_INSERT, row)
        fair_share.admit(connection, account, row, now)
        if row["routing"] is not None:
            key = fair_share.routed_key(row, ticket.route, ticket.routing.reason)
            fair_share.count(connection, key, 1, ticket.predicted.gpu_seconds)
        append(connection, ticket.tenant_id, [entry], now)
        return first_job(ticket, now)

    def find_duplicate(self, tenant_id: TenantId, idempotency: Idempotency) -> Job | None:
        if idempotency.key is None and not idempotency.is_retry:
            return None
        idempotency = self.digests.protect(tenant_id, idempotency)
        with self._database.read() as connection:
            now = self._database.now(connection)
            row = self._find_duplicate(connection, tenant_id, idempotency, now)
        return self._read(row) if row is not None else None

    def _find_duplicate(
        self, connection: sa.Connection, tenant_id: TenantId, idempotency: Idempotency, now: float
    ) -> Row | None:
        since = now - self._settings.retry_window_seconds
        return find_duplicate(connection, tenant_id, idempotency, since)

    def lease(self, offer: Offer) -> Lease | None:
        if not self._may_lease() or (wakeup := self._waker.take(offer)) is None:
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
        self._waker.wait(offer, is_stopping)

    def _read(self, row: Row) -> Job:
        """The job of a row, after the transaction. Its prompt is "" while the tenant's key cannot be used."""
        try:
            return to_job(row, self._sealer)
        except KeyringUnavailable as exc:
            log.warning("a prompt could not be decrypted", code=exc.code, job_id=row["id"])
            return to_job(row, None)

    def heartbeat(self, lease: Lease, progress: Progress | None = None) -> HeartbeatReply:
        with self._released_if_lost(lease), self._database.write(is_durable=False) as connection:
            values = self._transitions.wake_in(connection, lease.seconds)
            values |= {"the_id": lease.job.id, "the_fence": lease.fence}
            statement = _HEARTBEAT
            if progress is not None:
                values |= from_progress(progress) | {"the_time": self._database.now(connection)}
                statement = _HEARTBEAT_WITH_PROGRESS
            row = connection.execute(statement, values).mappings().one_or_none()
            if row is None:
                raise _lost(lease)
            if progress is not None and progress.done == 0:
                self._transitions.note_stage(connection, row)
        self._waker.renewed(lease)
        return HeartbeatReply(is_cancelling=row["is_cancelling"])

    def complete(self, lease: Lease, result: AttemptResult) -> Job:
        with self._released_if_lost(lease), self._database.write() as connection:
            row = self._complete(connection, lease, result)
        self._waker.ended(lease, None)
        return _to_leased(row, lease)

    def _complete(self, connection: sa.Connection, lease: Lease, result: AttemptResult) -> Row:
        account, row = self._lock_leased(connection, lease)
        if row["fence"] == lease.fence and row["clip"] == from_clip(result.clip):
            return row
        _require_held(row, lease)
        now, measured = self._database.now(connection), result.measured
        if row["is_cancelling"]:
            return self._transitions.fail(connection, row, CANCELLED, measured.gpu_seconds)
        fair_share.settle(connection, account, measured.gpu_seconds - row["predicted_gpu_seconds"], now)
        fair_share.count_end(connection, row, JobState.COMPLETED, None, measured.gpu_seconds)
        observe_completion(connection, row, measured, now)
        is_late = now > row["deadline_at"]
        count_job(connection, row, is_late=is_late, now=now)
        record_end(connection, row, EndOfJob(now, None, measured.gpu_seconds, is_late=is_late))
        values = self._transitions.final(now) | {
            "clip": from_clip(result.clip),
            "measured": json.dumps(asdict(measured)),
            "fraction": 1.0,
        }
        rendered = {**row, **values}
        entry = auditing.completed(connection, rendered, result.provenance, self._usd_per_gpu_hour)
        return self._transitions.change(connection, row, JobState.COMPLETED, values, entry=entry)

    def fail_attempt(self, lease: Lease, failed: AttemptFailure) -> Job:
        with self._released_if_lost(lease), self._database.write() as connection:
            row, delay = self._fail_attempt(connection, lease, failed)
        job = _to_leased(row, lease)
        if job.state.is_final:
            self._waker.ended(lease, None)
        elif failed.uses_attempt or delay > 0:
            self._waker.ended(lease, delay)
        else:
            self._waker.returned(lease, _to_ready(job))
        return job

    def _fail_attempt(
        self, connection: sa.Connection, lease: Lease, failed: AttemptFailure
    ) -> tuple[Row, float]:
        _, row = self._lock_leased(connection, lease)
        _require_held(row, lease)
        if row["is_cancelling"]:
            return self._transitions.fail(connection, row, CANCELLED), 0.0
        is_last = failed.uses_attempt and row["attempt"] >= self._settings.max_attempts
        if is_last or not failed.is_retryable:
            return self._transitions.fail(connection, row, failed.failure), 0.0
        delay = failed.retry_seconds
        if failed.uses_attempt:
            delay = self._settings.backoff_seconds * 2.0 ** (row["attempt"] - 1)
        values = self._transitions.wake_in(connection, delay) | from_progress(None)
        values |= {"attempt": row["attempt"] - (not failed.uses_attempt), "worker_id": None}
        row = self._transitions.change(connection, row, JobState.QUEUED, values, failed.failure.reason)
        if failed.routing is None:
            return row, delay
        job = lease.job
        move = Move(job.tenant_id, job.id, Route.GPU, failed.routing)
        move_jobs(connection, [move], self._database.now(connection))
        return lock_job(connection, job.tenant_id, job.id)[1], delay

    def cancel(self, tenant_id: TenantId, job_id: JobId, actor: Actor = SYSTEM) -> Job:
        with self._database.write() as connection:
            _, row = lock_job(connection, tenant_id, job_id)
            state, entry = JobState(row["state"]), auditing.cancelled(row, actor)
            if state is JobState.QUEUED:
                self._transitions.audit(connection, row, entry)
                row = self._transitions.fail(connection, row, CANCELLED)
            elif state is JobState.RUNNING and not row["is_cancelling"]:
                values = {"is_cancelling": True}
                row = self._transitions.change(connection, row, JobState.RUNNING, values, entry=entry)
        return self._read(row)

    def remove(self, tenant_id: TenantId, job_id: JobId, actor: Actor = SYSTEM) -> None:
        with self._database.write() as connection:
            try:
                _, row = lock_job(connection, tenant_id, job_id)
            except JobNotFound:
                return
            if not JobState(row["state"]).is_final:
                raise JobActive("the video is queued or running; cancel it first")
            # The provider may still hold a copy: its record outlives the job until the copy is deleted.
            connection.execute(_KEEP_INVOCATION, {"the_seq": row["seq"], "the_id": job_id})
            connection.execute(sa.delete(jobs).where(jobs.c.seq == row["seq"]))
            self._transitions.audit(connection, row, auditing.deleted(row, actor))

    def reroute(self, moves: Sequence[Move]) -> int:
        with self._database.write() as connection:
            for row in lock_lost(connection, moves, self._database.steady_now(connection)):
                self._leasing.release(connection, row)
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


def _to_leased(row: Row, lease: Lease) -> Job:
    """The job of a row with the texts that its lease has: the keyring is not needed again."""
    job, spec = to_job(row, None), lease.job.spec
    return replace(job, spec=replace(job.spec, prompt=spec.prompt, negative_prompt=spec.negative_prompt))


def _lost(lease: Lease) -> LeaseLost:
    return LeaseLost(f"the lease of {lease.job.id} with fence {lease.fence} has ended")


def _to_ready(job: Job) -> ReadyJob:
    return ReadyJob(job.id, job.route, job.spec.model, job.fence)
