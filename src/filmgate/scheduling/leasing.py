"""Leases the next job. The keyring is called after the transaction: no lock may wait for it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import sqlalchemy as sa

from filmgate.database import Database
from filmgate.database.schema import events, jobs
from filmgate.errors import KeyRefused, KeyringUnavailable, LeaseLost
from filmgate.jobs import Failure, Job, JobId, JobState, Lease, Reason, TenantId
from filmgate.scheduling import fair_share
from filmgate.scheduling.base import AttemptFailure, Offer
from filmgate.scheduling.claims import find_fair, find_named, peek_due, peek_fair, take_due
from filmgate.scheduling.durations import observe_wait
from filmgate.scheduling.rows import (
    IS_DUE,
    IS_PAUSED,
    Row,
    from_progress,
    is_paused,
    open_prompt,
    to_job,
    to_routing,
)
from filmgate.scheduling.transitions import Transitions
from filmgate.settings import QueueSettings
from filmgate.store.keys.data_keys import Sealer
from filmgate.telemetry.logs import Log

log = Log("queue")

CANCELLED = Failure(Reason.CANCELLED, "the video was cancelled")
_RETURNED_AT = sa.select(sa.func.max(events.c.at)).where(events.c.job_seq == sa.bindparam("the_seq"))
_END_PAUSES = (
    sa.update(jobs)
    # An expression, so that SQLite reads the jobs that wait (ix_jobs_wake), and not all jobs of the tenant.
    .where(jobs.c.tenant_id + "" == sa.bindparam("own"), sa.text("jobs.wake_at IS NOT NULL"))
    .where(IS_DUE, IS_PAUSED)
    .values(wake_at=None, wake_set_at=None)
)
# Jobs one call may fail, or lose to another worker, before it returns.
_MAX_TRIES = 20
# How long a tenant is skipped whose key cannot be used.
_FIRST_PAUSE_SECONDS = 5.0
_MAX_PAUSE_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class _Block:
    seconds: float
    since: float  # on the steady clock of the database


class KeyGuard:
    """One tenant's unusable key must not stop the jobs of the others.

    A blocked tenant is tried again after a pause that doubles with every failure. Each process has its own
    guard: the keyring of another process may work.
    """

    # The job itself waits longer than the first pause, so that other jobs of its tenant get a turn.
    RETRY_SECONDS: ClassVar[float] = 10.0

    def __init__(self) -> None:
        self._blocks: dict[TenantId, _Block] = {}

    def blocked(self, steady_now: float) -> tuple[TenantId, ...]:
        """The tenants to skip now. A block is over if the clock has stepped back since."""
        return tuple(
            tenant_id
            for tenant_id, block in self._blocks.items()
            if block.since <= steady_now < block.since + block.seconds
        )

    def block(self, tenant_id: TenantId, steady_now: float, *, is_over: bool) -> float:
        """Skip the tenant for a while. Returns for how many seconds.

        `is_over`: the job has failed, and the next one of its tenant may follow soon.
        """
        known = self._blocks.get(tenant_id)
        seconds = _FIRST_PAUSE_SECONDS if known is None else min(known.seconds * 2, _MAX_PAUSE_SECONDS)
        if is_over:
            seconds = 1.0
        self._blocks[tenant_id] = _Block(seconds, steady_now)
        return seconds

    def allow(self, tenant_id: TenantId) -> None:
        """The key works again."""
        self._blocks.pop(tenant_id, None)


class Leasing:
    """Finds, locks and leases jobs, and hands back those whose prompt cannot be decrypted."""

    def __init__(
        self,
        database: Database,
        sealer: Sealer,
        settings: QueueSettings,
        transitions: Transitions,
        hand_back: Callable[[Lease, AttemptFailure], Job],
    ) -> None:
        self._database = database
        self._sealer = sealer
        self._settings = settings
        self._transitions = transitions
        self._hand_back = hand_back
        self._key_guard = KeyGuard()

    def next(self, offer: Offer) -> Lease | None:
        """Lease the job that is next for this worker."""
        awaited: TenantId | None = None
        left = _MAX_TRIES
        while left > 0:
            left -= 1
            with self._database.write() as connection:
                steady_now = self._database.steady_now(connection)
                able = replace(offer, excluded=self._key_guard.blocked(steady_now))
                if (peeked := peek_due(connection, able, steady_now)) is not None:
                    row = take_due(connection, offer, peeked, steady_now)
                    if row is not None and is_paused(row):
                        connection.execute(_END_PAUSES, {"own": row["tenant_id"], "steady_now": steady_now})
                        left += 1  # there is one less of them
                        continue
                elif (row := find_fair(connection, able, awaited)) is None:
                    if (awaited := peek_fair(connection, able)) is None:
                        return None
                    continue
                granted = self._grant(connection, row, offer) if row is not None else None
            if granted is not None and (lease := self._open_lease(granted, offer)) is not None:
                return lease
            awaited = None
        return None

    def named(self, offer: Offer, job_id: JobId) -> Lease | None:
        """Lease this job if it can be leased now."""
        with self._database.write() as connection:
            steady_now = self._database.steady_now(connection)
            able = replace(offer, excluded=self._key_guard.blocked(steady_now))
            row = find_named(connection, able, job_id, steady_now)
            granted = self._grant(connection, row, offer) if row is not None else None
        return self._open_lease(granted, offer) if granted is not None else None

    def release(self, connection: sa.Connection, row: Row) -> None:
        """Queue a locked job whose lease has ended, or fail it. Its old worker gets LeaseLost."""
        if (failure := self._find_failure(row)) is not None:
            self._transitions.fail(connection, row, failure)
            return
        values = {"worker_id": None, "wake_at": None, "wake_set_at": None} | from_progress(None)
        self._transitions.change(connection, row, JobState.QUEUED, values, Reason.WORKER_LOST)

    def _grant(self, connection: sa.Connection, row: Row, offer: Offer) -> Row | None:
        """Lease a locked job; None when it must fail instead."""
        if (failure := self._find_failure(row)) is not None:
            self._transitions.fail(connection, row, failure)
            return None
        if row["wake_at"] is None:
            fair_share.charge(connection, row, row["predicted_gpu_seconds"])
        now = self._database.moment(connection).now
        version = _version_for(offer, row)
        if row["started_at"] is None:
            observe_wait(connection, row, version, now)
        values = self._transitions.wake_in(connection, self._settings.lease_seconds) | from_progress(None)
        values |= {
            "fence": row["fence"] + 1,
            "attempt": row["attempt"] + 1,
            "started_at": now,
            "worker_id": offer.worker_id,
            "device": offer.device,
            "version": version,
        }
        waited = self._waited_seconds(connection, row, values["wake_set_at"], now)
        return dict(self._transitions.change(connection, row, JobState.RUNNING, values)) | {"waited": waited}

    def _waited_seconds(self, connection: sa.Connection, row: Row, steady_now: float, now: float) -> float:
        """How long the job waited: since it was accepted, came back, or was lost with its worker."""
        if row["state"] == JobState.RUNNING:
            return max(float(steady_now - row["wake_set_at"]), 0.0)
        returned_at = None
        if row["fence"] > 0:
            returned_at = connection.execute(_RETURNED_AT, {"the_seq": row["seq"]}).scalar()
        return max(float(now - (returned_at or row["created_at"])), 0.0)

    def _find_failure(self, row: Row) -> Failure | None:
        """Why a job must fail instead of being leased."""
        if row["is_cancelling"]:
            return CANCELLED
        if row["state"] == JobState.RUNNING and row["attempt"] >= self._settings.max_attempts:
            return Failure(Reason.WORKER_LOST, f"the worker was lost in {row['attempt']} attempts")
        return None

    def _open_lease(self, row: Row, offer: Offer) -> Lease | None:
        """The lease with the decrypted prompt; None when the tenant's key cannot be used now.

        Runs after the transaction: the keyring may be slow, and no lock may wait for it.
        """
        try:
            job = to_job(row)
        except ValueError as exc:
            # A newer version wrote it. The lease expires: a worker of that version may render the job.
            log.error("a job cannot be read by this version of filmgate", error=exc, job_id=row["id"])  # noqa: TRY400
            return None
        lease = Lease(job, offer.worker_id, row["fence"], self._settings.lease_seconds, row["waited"])
        try:
            texts = open_prompt(self._sealer, row)
        except (KeyRefused, KeyringUnavailable) as exc:
            self._return_unopened(lease, row, exc)
            return None
        self._key_guard.allow(lease.job.tenant_id)
        return replace(lease, job=to_job(row, texts))

    def _return_unopened(self, lease: Lease, row: Row, error: KeyRefused | KeyringUnavailable) -> None:
        """Hand the job back and skip its tenant for a while, or fail it when it has waited too long."""
        job = lease.job
        age_seconds = (job.started_at or job.created_at) - job.created_at
        is_over = isinstance(error, KeyRefused) and age_seconds >= self._settings.key_wait_seconds
        pause = self._key_guard.block(job.tenant_id, row["wake_set_at"], is_over=is_over)
        log.error(
            "a tenant's encryption key cannot be used; its jobs wait",
            code=error.code,
            tenant_id=job.tenant_id,
            job_id=job.id,
            seconds=pause,
        )
        failure = Failure(Reason.KEY_REFUSED, "the tenant's encryption key cannot be used")
        failed = AttemptFailure(
            failure, is_retryable=not is_over, uses_attempt=False, retry_seconds=KeyGuard.RETRY_SECONDS
        )
        try:
            self._hand_back(lease, failed)
        except LeaseLost:
            log.warning("the lease ended while the keyring was called", job_id=job.id)


def _version_for(offer: Offer, row: Row) -> str:
    """The weights that the worker has loaded, or the provider's model; "" if neither is known."""
    return offer.versions.get(row["model"]) or to_routing(row["routing"]).provider_model or ""
