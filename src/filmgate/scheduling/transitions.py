"""Changes of a job's state: the row, its counters and its event, written together."""

from dataclasses import asdict
from typing import Any

import sqlalchemy as sa

from filmgate.audit.chain import append
from filmgate.audit.records import Entry
from filmgate.database import Database
from filmgate.database.schema import events, jobs
from filmgate.errors import JobNotFound
from filmgate.jobs import Failure, JobId, JobState, Reason, Stage, TenantId
from filmgate.scheduling import auditing, fair_share
from filmgate.scheduling.history import NOT_COUNTED, EndOfJob, record_end
from filmgate.scheduling.ready import IS_DUE, time_terms
from filmgate.scheduling.rows import Row, from_failure, to_predicted, to_stage
from filmgate.settings import QueueSettings
from filmgate.slo.counts import count_job

# The stages that occupy the GPU, as in StageSeconds.gpu_seconds.
_CHARGED = (Stage.TEXT, Stage.DENOISE, Stage.DECODE)
_EVENT_COLUMNS = ("revision", "state", "stage", "attempt")
_UPDATE = sa.update(jobs).where(jobs.c.seq == sa.bindparam("the_seq")).returning(jobs)
_LOCK = (
    sa.select(jobs)
    .where(jobs.c.id == sa.bindparam("the_id"), jobs.c.tenant_id == sa.bindparam("own"))
    .with_for_update()
)
_FIND_STAGE = (
    sa.select(events.c.revision)
    .where(events.c.job_seq == sa.bindparam("the_seq"), events.c.attempt == sa.bindparam("the_attempt"))
    .where(events.c.stage == sa.bindparam("the_stage"))
    .limit(1)
)


class Transitions:
    """Writes transitions in the caller's transaction. The caller has locked the tenant's account."""

    def __init__(self, database: Database, settings: QueueSettings) -> None:
        self._database = database
        self._settings = settings

    def change(
        self,
        connection: sa.Connection,
        row: Row,
        state: JobState,
        values: dict[str, Any],
        reason: Reason | None = None,
        entry: Entry | None = None,
    ) -> Row:
        """Move the job to `state`, count it there, write the event and the audit record. Returns the new row.

        `entry` is the audit record where the row and the reason do not say enough.
        """
        fair_share.move(connection, row, state)
        values = values | {"state": state, "revision": row["revision"] + 1, "the_seq": row["seq"]}
        changed = connection.execute(_UPDATE, values).mappings().one()
        self._note(connection, changed, reason)
        self.audit(connection, row, entry or auditing.changed(changed, state, reason))
        return changed

    def fail(
        self, connection: sa.Connection, row: Row, failure: Failure, used_gpu_seconds: float | None = None
    ) -> Row:
        """Fail the job and return the GPU-seconds it had reserved; a cancelled job pays for the work done."""
        now = self._database.now(connection)
        if used_gpu_seconds is None:
            used_gpu_seconds = work_done(row) if failure.reason is Reason.CANCELLED else 0.0
        account = fair_share.lock_account(connection, row["tenant_id"])
        if account is not None:
            fair_share.settle(connection, account, used_gpu_seconds - row["predicted_gpu_seconds"], now)
        fair_share.count_end(connection, row, JobState.FAILED, failure.reason, used_gpu_seconds)
        is_late = failure.reason not in NOT_COUNTED
        if is_late:
            count_job(connection, row, is_late=True, now=now)
        record_end(connection, row, EndOfJob(now, failure.reason, used_gpu_seconds, is_late=is_late))
        values = self.final(now) | {"failure": from_failure(failure)}
        return self.change(connection, row, JobState.FAILED, values, failure.reason)

    def audit(self, connection: sa.Connection, row: Row, entry: Entry) -> None:
        """Append to the tenant's audit log, in the transaction of what it records."""
        append(connection, TenantId(row["tenant_id"]), [entry], self._database.now(connection))

    def fail_abandoned(self, connection: sa.Connection, job_id: JobId, failure: Failure) -> bool:
        """Fail a job unless it has ended or a worker holds it."""
        owner = sa.select(jobs.c.tenant_id).where(jobs.c.id == job_id)
        if (tenant_id := connection.execute(owner).scalar_one_or_none()) is None:
            return False
        _, row = lock_job(connection, tenant_id, job_id)
        overdue = sa.select(jobs.c.seq).where(jobs.c.seq == row["seq"], IS_DUE)
        terms = time_terms(self._database.steady_now(connection))
        is_held = row["state"] == JobState.RUNNING and connection.execute(overdue, terms).first() is None
        if JobState(row["state"]).is_final or is_held:
            return False
        self.fail(connection, row, failure)
        return True

    def final(self, now: float) -> dict[str, Any]:
        """The values of a job that ends now."""
        expires_at = now + self._settings.retention_seconds
        return {"finished_at": now, "expires_at": expires_at, "wake_at": None, "wake_set_at": None}

    def wake_in(self, connection: sa.Connection, seconds: float) -> dict[str, Any]:
        """The values of a job whose lease or backoff ends in this many seconds."""
        steady_now = self._database.steady_now(connection)
        return {"wake_at": steady_now + seconds, "wake_set_at": steady_now}

    def note_stage(self, connection: sa.Connection, row: Row) -> None:
        """Write the event of a stage, once per attempt."""
        place = {"the_seq": row["seq"], "the_attempt": row["attempt"], "the_stage": row["stage"]}
        if connection.execute(_FIND_STAGE, place).first() is None:
            self._note(connection, row)

    def _note(self, connection: sa.Connection, row: Row, reason: Reason | None = None) -> None:
        event = {name: row[name] for name in _EVENT_COLUMNS}
        event |= {"job_seq": row["seq"], "at": self._database.now(connection), "reason": reason}
        connection.execute(sa.insert(events), event)


def lock_job(connection: sa.Connection, tenant_id: TenantId, job_id: JobId) -> tuple[Row, Row]:
    """The tenant's account and its job, locked in the order that every transaction uses."""
    account = fair_share.lock_account(connection, tenant_id)
    row = connection.execute(_LOCK, {"the_id": job_id, "own": tenant_id}).mappings().one_or_none()
    if account is None or row is None:
        raise JobNotFound("no such video")
    return account, row


def work_done(row: Row) -> float:
    """The predicted GPU-seconds of the work that the current attempt has finished."""
    if (stage := to_stage(row["stage"])) is None:
        return 0.0
    seconds, order = asdict(to_predicted(row["predicted"])), list(Stage)
    finished = sum(seconds[name] for name in _CHARGED if order.index(name) < order.index(stage))
    part = min(row["stage_done"] / max(row["stage_total"], 1), 1.0)
    return float(finished + (seconds[stage] * part if stage in _CHARGED else 0.0))
