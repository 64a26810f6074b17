"""The JobQueue on one database, SQLite or PostgreSQL. Every change is one transaction."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa

from filmgate.database import Database
from filmgate.database.prepared import Prepared
from filmgate.database.schema import events, jobs, loads
from filmgate.errors import IdempotencyConflict, JobActive, JobNotFound, KeyRefused, LeaseLost
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
from filmgate.scheduling.attendance import Attendance, list_present
from filmgate.scheduling.base import Backlog, Finish, Load, Offer, Setback, Standing
from filmgate.scheduling.claims import IS_READY, find_fair, peek_due, peek_fair, take_due
from filmgate.scheduling.group_commit import GroupCommit
from filmgate.scheduling.rerouting import move_jobs
from filmgate.scheduling.rows import (
    Row,
    first_job,
    from_clip,
    from_failure,
    from_progress,
    open_prompt,
    seal_prompt,
    to_job,
    to_row,
)
from filmgate.scheduling.waiting import Move
from filmgate.settings import QueueSettings
from filmgate.store.keys.cache import DataKeys
from filmgate.store.keys.sealing import Sealer

_EVENT_COLUMNS = ("seq", "revision", "state", "stage", "attempt")
_OWN = jobs.c.tenant_id == sa.bindparam("own")
_INSERT = Prepared(sa.insert(jobs))
_UPDATE = sa.update(jobs).where(jobs.c.seq == sa.bindparam("the_seq")).returning(jobs)
_LOCK = sa.select(jobs).where(jobs.c.id == sa.bindparam("the_id"), _OWN).with_for_update()
_NOTE = sa.insert(events)
_BEAT = (
    sa.update(jobs)
    .where(jobs.c.id == sa.bindparam("the_id"), jobs.c.fence == sa.bindparam("the_fence"))
    .where(sa.text("state = 'running'"))
    .returning(*(jobs.c[name] for name in _EVENT_COLUMNS), jobs.c.is_cancelling)
)
_BEAT_WITH_NEWS = _BEAT.values(revision=jobs.c.revision + 1)
_FIND_STAGE = (
    sa.select(events.c.revision)
    .where(events.c.job_seq == sa.bindparam("the_seq"), events.c.attempt == sa.bindparam("the_attempt"))
    .where(events.c.stage == sa.bindparam("the_stage"))
    .limit(1)
)
_FIND_KEYED = sa.select(jobs).where(_OWN, jobs.c.idempotency_key == sa.bindparam("key"))
_FIND_ROW = sa.select(jobs).where(jobs.c.seq == sa.bindparam("the_seq"))
_FIND_TWIN = Prepared(
    sa.select(jobs.c.seq)
    .where(_OWN, jobs.c.body_digest == sa.bindparam("digest"), jobs.c.idempotency_key.is_(None))
    .where(jobs.c.created_at > sa.bindparam("since"))
    .where(sa.or_(sa.bindparam("any", type_=sa.Boolean), jobs.c.awaits_original))
    .order_by(jobs.c.seq.desc())
    .limit(1)
)

CANCELLED = Failure(Reason.CANCELLED, "the video was cancelled")
# Due jobs one call may bury, or lose to a faster worker, before it answers.
_TRIES_A_LEASE = 20


class SqlQueue:
    """Jobs as rows: leased by fence, shared by ledger, ended once."""

    def __init__(self, database: Database, keys: DataKeys, settings: QueueSettings) -> None:
        self._database = database
        self._sealer = Sealer(keys)
        self._settings = settings
        self._group = GroupCommit(database)
        self._attendance = Attendance()

    def enqueue(self, ticket: Ticket) -> Job:
        sealed_prompt = seal_prompt(self._sealer, ticket)

        def accept(connection: sa.Connection) -> Job:
            return self._accept(connection, ticket, sealed_prompt)

        if self._database.is_sqlite:
            return self._group.run(accept)
        with self._database.write() as connection:
            return accept(connection)

    def _accept(self, connection: sa.Connection, ticket: Ticket, sealed_prompt: bytes) -> Job:
        account = fair_share.open_account(connection, ticket.tenant_id, ticket.share)
        now = self._database.now(connection)
        if (twin := self._find_twin(connection, ticket.tenant_id, ticket.idempotency, now)) is not None:
            return to_job(twin, self._sealer)
        fair_share.check_quotas(account, ticket.share, ticket.predicted.gpu_seconds, now)
        row = to_row(ticket, now, sealed_prompt)
        _INSERT.run(connection, row)
        fair_share.admit(connection, account, row, now)
        if row["routing"] is not None:
            routed = fair_share.routed_lane(row, ticket.route, ticket.routing.reason)
            fair_share.add_load(connection, routed, 1, ticket.predicted.gpu_seconds)
        return first_job(ticket, now)

    def recall(self, tenant_id: TenantId, idempotency: Idempotency) -> Job | None:
        if idempotency.key is None and not idempotency.is_retry:
            return None
        with self._database.read() as connection:
            now = self._database.now(connection)
            twin = self._find_twin(connection, tenant_id, idempotency, now)
        return to_job(twin, self._sealer) if twin is not None else None

    def lease(self, offer: Offer) -> Lease | None:
        awaited: TenantId | None = None
        for _ in range(_TRIES_A_LEASE):
            with self._database.write() as connection:
                steady_now = self._database.steady_now(connection)
                self._attendance.mark(connection, offer, steady_now)
                if (peeked := peek_due(connection, offer, steady_now)) is not None:
                    if (lease := self._lease_due(connection, offer, peeked, steady_now)) is not None:
                        return lease
                    continue
                if (row := find_fair(connection, offer, awaited)) is not None:
                    if (verdict := self._judge(row)) is None:
                        fair_share.charge(connection, row)
                        return self._grant(connection, row, offer)
                    self._end(connection, row, verdict)
                    continue
                if (awaited := peek_fair(connection, offer)) is None:
                    return None
        return None

    def heartbeat(self, lease: Lease, progress: Progress | None = None) -> Standing:
        with self._database.write(is_durable=False) as connection:
            values = self._wake(connection, lease.seconds) | {
                "the_id": lease.job.id,
                "the_fence": lease.fence,
            }
            if progress is None:
                row = connection.execute(_BEAT, values).mappings().one_or_none()
            else:
                values |= from_progress(progress)
                row = connection.execute(_BEAT_WITH_NEWS, values).mappings().one_or_none()
            if row is None:
                raise _lost(lease)
            if progress is not None and progress.done == 0:
                self._note_stage(connection, row)
            return Standing(is_cancelling=row["is_cancelling"])

    def complete(self, lease: Lease, finish: Finish) -> Job:
        with self._database.write() as connection:
            account, row = self._lock_leased(connection, lease)
            if row["fence"] == lease.fence and row["clip"] == from_clip(finish.clip):
                return to_job(row, self._sealer)
            self._require_held(row, lease)
            if row["is_cancelling"]:
                return self._end(connection, row, CANCELLED)
            now = self._database.now(connection)
            fair_share.settle(
                connection, account, finish.measured.gpu_seconds - row["predicted_gpu_seconds"], now
            )
            fair_share.tally(connection, row, JobState.COMPLETED, None, finish.measured.gpu_seconds)
            fair_share.observe(connection, row["model"], "total", now - row["created_at"])
            for stage, seconds in asdict(finish.measured).items():
                fair_share.observe(connection, row["model"], stage, seconds)
            values = self._final(now) | {
                "clip": from_clip(finish.clip),
                "measured": json.dumps(asdict(finish.measured)),
                "fraction": 1.0,
            }
            return self._change(connection, row, JobState.COMPLETED, values)

    def give_up(self, lease: Lease, setback: Setback) -> Job:
        with self._database.write() as connection:
            _, row = self._lock_leased(connection, lease)
            self._require_held(row, lease)
            if row["is_cancelling"]:
                return self._end(connection, row, CANCELLED)
            is_spent = setback.counts and row["attempt"] >= self._settings.max_attempts
            if is_spent or not setback.is_retryable:
                return self._end(connection, row, setback.failure)
            delay = self._backoff_seconds(row["attempt"]) if setback.counts else 0.0
            values = self._wake(connection, delay) | from_progress(None)
            values |= {"attempt": row["attempt"] - (not setback.counts), "worker_id": None}
            job = self._change(connection, row, JobState.QUEUED, values, setback.failure.reason)
            if setback.routing is None:
                return job
            homeward = Move(job.tenant_id, job.id, Route.GPU, setback.routing)
            move_jobs(connection, [homeward], self._database.now(connection))
            return to_job(self._lock(connection, job.tenant_id, job.id)[1], self._sealer)

    def cancel(self, tenant_id: TenantId, job_id: JobId) -> Job:
        with self._database.write() as connection:
            _, row = self._lock(connection, tenant_id, job_id)
            state = JobState(row["state"])
            if state is JobState.QUEUED:
                return self._end(connection, row, CANCELLED)
            if state is JobState.RUNNING and not row["is_cancelling"]:
                return self._change(connection, row, JobState.RUNNING, {"is_cancelling": True})
            return to_job(row, self._sealer)

    def remove(self, tenant_id: TenantId, job_id: JobId) -> None:
        with self._database.write() as connection:
            try:
                _, row = self._lock(connection, tenant_id, job_id)
            except JobNotFound:
                return
            if not JobState(row["state"]).is_final:
                raise JobActive("the video is still being made; cancel it first")
            connection.execute(sa.delete(jobs).where(jobs.c.seq == row["seq"]))

    def reroute(self, moves: Sequence[Move]) -> int:
        with self._database.write() as connection:
            return move_jobs(connection, moves, self._database.now(connection))

    def backlog(self) -> Backlog:
        own = (loads.c.tenant_id, loads.c.route, loads.c.model)
        oldest = (
            sa.select(jobs.c.created_at)
            .where(jobs.c.tenant_id == own[0], jobs.c.route == own[1], jobs.c.model == own[2], IS_READY)
            .order_by(jobs.c.deadline_at, jobs.c.seq)
            .limit(1)
            .correlate(loads)
            .scalar_subquery()
        )
        with self._database.read() as connection:
            is_open = sa.and_(loads.c.jobs > 0, loads.c.state.in_([JobState.QUEUED, JobState.RUNNING]))
            rows = connection.execute(sa.select(loads, oldest.label("oldest")).where(is_open)).all()
            workers = list_present(connection, self._database.steady_now(connection))
        return Backlog(
            loads=tuple(
                Load(TenantId(r.tenant_id), Route(r.route), r.model, JobState(r.state), r.jobs, r.gpu_seconds)
                for r in rows
            ),
            oldest_queued_at=min((r.oldest for r in rows if r.oldest is not None), default=None),
            workers=tuple(workers),
        )

    def _find_twin(
        self, connection: sa.Connection, tenant_id: TenantId, wish: Idempotency, now: float
    ) -> Row | None:
        if wish.key is not None:
            keyed = {"own": tenant_id, "key": wish.key}
            twin = connection.execute(_FIND_KEYED, keyed).mappings().one_or_none()
            if twin is not None and twin["body_digest"] != wish.body_digest:
                raise IdempotencyConflict(
                    "this Idempotency-Key was used with another body", option="Idempotency-Key"
                )
            return twin
        # A retry is the job its original made. An original that arrives after its own retry is that job too,
        # but only one: a later request of the same body is a wish for a second clip.
        since = now - self._settings.retry_window_seconds
        same = {"own": tenant_id, "digest": wish.body_digest, "since": since, "any": wish.is_retry}
        if (found := _FIND_TWIN.first(connection, same)) is None:
            return None
        if not wish.is_retry:
            self._update(connection, found["seq"], {"awaits_original": False})
        return connection.execute(_FIND_ROW, {"the_seq": found["seq"]}).mappings().one()

    def _lease_due(
        self, connection: sa.Connection, offer: Offer, peeked: Row, steady_now: float
    ) -> Lease | None:
        if (row := take_due(connection, peeked, steady_now)) is None:
            return None
        if (verdict := self._judge(row)) is None:
            return self._grant(connection, row, offer)
        self._end(connection, row, verdict)
        return None

    def _judge(self, row: Row) -> Failure | None:
        """Why a job whose turn has come must end instead of being leased."""
        if row["is_cancelling"]:
            return CANCELLED
        if row["state"] == JobState.RUNNING and row["attempt"] >= self._settings.max_attempts:
            return Failure(Reason.WORKER_LOST, f"the worker was lost in {row['attempt']} attempts")
        try:
            open_prompt(self._sealer, row)
        except KeyRefused:
            return Failure(Reason.KEY_REFUSED, "the tenant's key is gone, and the request with it")
        return None

    def _grant(self, connection: sa.Connection, row: Row, offer: Offer) -> Lease:
        seconds, now = self._settings.lease_seconds, self._database.now(connection)
        if row["started_at"] is None:
            fair_share.observe(connection, row["model"], "wait", now - row["created_at"])
        values = self._wake(connection, seconds) | from_progress(None)
        values |= {
            "fence": row["fence"] + 1,
            "attempt": row["attempt"] + 1,
            "started_at": now,
            "worker_id": offer.worker_id,
            "device": offer.device,
        }
        job = self._change(connection, row, JobState.RUNNING, values)
        return Lease(job=job, worker_id=offer.worker_id, fence=job.fence, seconds=seconds)

    def _end(self, connection: sa.Connection, row: Row, failure: Failure) -> Job:
        """Fail the job and give the GPU-seconds it had reserved back."""
        now = self._database.now(connection)
        account = fair_share.lock_account(connection, row["tenant_id"])
        if account is not None:
            fair_share.settle(connection, account, -row["predicted_gpu_seconds"], now)
        fair_share.tally(connection, row, JobState.FAILED, failure.reason, 0.0)
        values = self._final(now) | {"failure": from_failure(failure)}
        return self._change(connection, row, JobState.FAILED, values, failure.reason)

    def _backoff_seconds(self, attempt: int) -> float:
        return self._settings.backoff_seconds * 2.0 ** (attempt - 1)

    def _final(self, now: float) -> dict[str, Any]:
        expires_at = now + self._settings.retention_seconds
        return {"finished_at": now, "expires_at": expires_at, "wake_at": None, "wake_set_at": None}

    def _wake(self, connection: sa.Connection, seconds: float) -> dict[str, Any]:
        steady_now = self._database.steady_now(connection)
        return {"wake_at": steady_now + seconds, "wake_set_at": steady_now}

    def _change(
        self,
        connection: sa.Connection,
        row: Row,
        state: JobState,
        values: dict[str, Any],
        reason: Reason | None = None,
    ) -> Job:
        """Write a transition, count it and note it. The caller holds the account's lock."""
        fair_share.move(connection, row, state)
        values = values | {"state": state, "revision": row["revision"] + 1}
        changed = self._update(connection, row["seq"], values)
        self._note(connection, changed, reason)
        return to_job(changed, self._sealer)

    @staticmethod
    def _update(connection: sa.Connection, seq: int, values: dict[str, Any]) -> Row:
        return connection.execute(_UPDATE, values | {"the_seq": seq}).mappings().one()

    def _note(self, connection: sa.Connection, row: Row, reason: Reason | None = None) -> None:
        event = {name: row[name] for name in _EVENT_COLUMNS if name != "seq"}
        event |= {"job_seq": row["seq"], "at": self._database.now(connection), "reason": reason}
        connection.execute(_NOTE, event)

    def _note_stage(self, connection: sa.Connection, row: Row) -> None:
        place = {"the_seq": row["seq"], "the_attempt": row["attempt"], "the_stage": row["stage"]}
        if connection.execute(_FIND_STAGE, place).first() is None:
            self._note(connection, row)

    def _lock(self, connection: sa.Connection, tenant_id: TenantId, job_id: JobId) -> tuple[Row, Row]:
        """The tenant's account and its job, both locked, in the order everyone takes them."""
        account = fair_share.lock_account(connection, tenant_id)
        row = connection.execute(_LOCK, {"the_id": job_id, "own": tenant_id}).mappings().one_or_none()
        if account is None or row is None:
            raise JobNotFound("no such video")
        return account, row

    def _lock_leased(self, connection: sa.Connection, lease: Lease) -> tuple[Row, Row]:
        try:
            return self._lock(connection, lease.job.tenant_id, lease.job.id)
        except JobNotFound as exc:
            raise _lost(lease) from exc

    @staticmethod
    def _require_held(row: Row, lease: Lease) -> None:
        if row["state"] != JobState.RUNNING or row["fence"] != lease.fence:
            raise _lost(lease)


def _lost(lease: Lease) -> LeaseLost:
    return LeaseLost(f"the lease of {lease.job.id} with fence {lease.fence} is no longer ours")
