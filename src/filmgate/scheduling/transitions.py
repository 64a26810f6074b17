"""Changes of a job's state: the row, its counters, its event and its audit record, written together."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa

from filmgate.audit.chain import append
from filmgate.audit.records import Action, Actor, Entry
from filmgate.database import Database
from filmgate.database.schema import events, invocations, jobs
from filmgate.errors import JobNotFound
from filmgate.jobs import Failure, JobId, JobState, Reason, Route, Stage, StageSeconds, TenantId
from filmgate.scheduling import fair_share
from filmgate.scheduling.base import AttemptResult, Move
from filmgate.scheduling.durations import observe_completion
from filmgate.scheduling.fair_share import EndOfJob
from filmgate.scheduling.history import NOT_COUNTED, record_end
from filmgate.scheduling.rows import (
    Row,
    to_clip,
    to_json,
    to_predicted,
    to_routing,
    to_stage,
)
from filmgate.settings import QueueSettings
from filmgate.slo.counts import count_job

_ACTIONS = {
    JobState.QUEUED: Action.REQUEUED,
    JobState.RUNNING: Action.STARTED,
    JobState.COMPLETED: Action.COMPLETED,
    JobState.FAILED: Action.FAILED,
}
_FIND_INVOCATION = sa.select(invocations.c.provider, invocations.c.invocation).where(
    invocations.c.job_seq == sa.bindparam("the_seq")
)
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


def changed_entry(row: Row, state: JobState, reason: Reason | None) -> Entry:
    """A job was leased, went back to the queue or failed."""
    details = {
        "attempt": row["attempt"],
        "route": row["route"],
        "version": row["version"],
        "worker": row["worker_id"],
        "device": row["device"],
        "reason": reason and reason.value,
    }
    return Entry(_ACTIONS[state], JobId(row["id"]), details=details)


def completed_entry(
    connection: sa.Connection, row: Row, result: AttemptResult, now: float, usd_per_gpu_hour: float
) -> Entry:
    """A clip is durable: everything that explains it, so that no other record is needed."""
    clip, gpu_seconds = result.clip, result.measured.gpu_seconds
    spec = json.loads(row["spec"])
    gpu_usd = gpu_seconds / 3600 * usd_per_gpu_hour if usd_per_gpu_hour else None
    is_managed = row["route"] == Route.MANAGED
    details = {
        "model": row["model"],
        "version": row["version"],
        "seed": spec.get("seed"),
        "spec": spec,
        "attempt": row["attempt"],
        "worker": row["worker_id"],
        "device": row["device"],
        "gpu": result.provenance.gpu_uuid,
        "instance": result.provenance.instance_id,
        "route": row["route"],
        "created_at": row["created_at"],
        "started_at": row["started_at"],
        "finished_at": now,
        "gpu_seconds": round(gpu_seconds, 3),
        "usd": to_routing(row["routing"]).usd if is_managed else gpu_usd,
        "clip_bytes": clip.size_bytes,
        "trace": row["trace_id"],
    }
    if is_managed:
        details |= _provider(connection, row)
    return Entry(Action.COMPLETED, JobId(row["id"]), clip_sha256=clip.sha256, details=details)


def _provider(connection: sa.Connection, row: Row) -> Mapping[str, Any]:
    found = connection.execute(_FIND_INVOCATION, {"the_seq": row["seq"]}).one_or_none()
    return {} if found is None else {"provider": found.provider, "provider_id": found.invocation}


def moved_entry(row: Row, move: Move) -> Entry:
    """A queued job changed its route."""
    routing = move.routing
    details = {
        "from": row["route"],
        "route": move.route.value,
        "route_reason": routing.reason.value,
        "provider": routing.provider,
        "provider_model": routing.provider_model,
        "usd": routing.usd,
    }
    return Entry(Action.REROUTED, move.job_id, details=details)


def cancelled_entry(row: Row, actor: Actor) -> Entry:
    """A caller asked to stop a job."""
    return Entry(Action.CANCELLED, JobId(row["id"]), actor, details={"state": row["state"]})


def deleted_entry(row: Row, actor: Actor) -> Entry:
    """The row and the objects of a job were deleted. The digest still finds the record of the clip."""
    clip = to_clip(row["clip"])
    digest = clip.sha256 if clip is not None else None
    return Entry(Action.DELETED, JobId(row["id"]), actor, digest, {"state": row["state"]})


class Transitions:
    """Writes transitions in the caller's transaction. The caller has locked the tenant's account."""

    def __init__(self, database: Database, settings: QueueSettings, usd_per_gpu_hour: float = 0.0) -> None:
        self._database = database
        self._settings = settings
        self._usd_per_gpu_hour = usd_per_gpu_hour

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
        self.audit(connection, row, entry or changed_entry(changed, state, reason))
        return changed

    def fail(
        self, connection: sa.Connection, row: Row, failure: Failure, used_gpu_seconds: float | None = None
    ) -> Row:
        """Fail the job and return the GPU-seconds it had reserved; a cancelled job pays for the work done."""
        if used_gpu_seconds is None:
            used_gpu_seconds = work_done(row) if failure.reason is Reason.CANCELLED else 0.0
        now, is_late = self._database.moment(connection).now, failure.reason not in NOT_COUNTED
        values = self._end(connection, row, EndOfJob(now, failure.reason, used_gpu_seconds, is_late=is_late))
        values |= {"failure": to_json(failure)}
        return self.change(connection, row, JobState.FAILED, values, failure.reason)

    def complete(self, connection: sa.Connection, row: Row, result: AttemptResult) -> Row:
        """Complete the job. Its tenant pays for the measured GPU-seconds instead of the predicted ones."""
        now, measured = self._database.moment(connection).now, result.measured
        usd = (to_routing(row["routing"]).usd or 0.0) if row["route"] == Route.MANAGED else 0.0
        end = EndOfJob(now, None, measured.gpu_seconds, now > row["deadline_at"], usd)
        values = self._end(connection, row, end, measured)
        values |= {
            "clip": to_json(result.clip),
            "measured": to_json(measured),
            "fraction": 1.0,
        }
        entry = completed_entry(connection, row, result, now, self._usd_per_gpu_hour)
        return self.change(connection, row, JobState.COMPLETED, values, entry=entry)

    def _end(
        self, connection: sa.Connection, row: Row, end: EndOfJob, measured: StageSeconds | None = None
    ) -> dict[str, Any]:
        """Count the end everywhere. Returns the values of a job that ends now."""
        fair_share.count_end(connection, row, end)
        if measured is not None:
            observe_completion(connection, row, measured, end.at)
        if end.reason not in NOT_COUNTED:
            count_job(connection, row, is_late=end.is_late, now=end.at)
        record_end(connection, row, end)
        expires_at = end.at + self._settings.retention_seconds
        return {"finished_at": end.at, "expires_at": expires_at, "wake_at": None, "wake_set_at": None}

    def audit(self, connection: sa.Connection, row: Row, entry: Entry) -> None:
        """Append to the tenant's audit log, in the transaction of what it records."""
        append(connection, TenantId(row["tenant_id"]), [entry], self._database.moment(connection).now)

    def wake_in(self, connection: sa.Connection, seconds: float) -> dict[str, Any]:
        """The values of a job whose lease or backoff ends in this many seconds."""
        steady_now = self._database.moment(connection).steady_now
        return {"wake_at": steady_now + seconds, "wake_set_at": steady_now}

    def note_stage(self, connection: sa.Connection, row: Row) -> None:
        """Write the event of a stage, once per attempt."""
        place = {"the_seq": row["seq"], "the_attempt": row["attempt"], "the_stage": row["stage"]}
        if connection.execute(_FIND_STAGE, place).first() is None:
            self._note(connection, row)

    def _note(self, connection: sa.Connection, row: Row, reason: Reason | None = None) -> None:
        event = {name: row[name] for name in _EVENT_COLUMNS}
        event |= {"job_seq": row["seq"], "at": self._database.moment(connection).now, "reason": reason}
        connection.execute(sa.insert(events), event)


def lock_job(connection: sa.Connection, tenant_id: TenantId, job_id: JobId) -> Row:
    """A job, locked after its tenant's account: the order that every transaction uses. Raises JobNotFound."""
    account = fair_share.lock_account(connection, tenant_id)
    row = connection.execute(_LOCK, {"the_id": job_id, "own": tenant_id}).mappings().one_or_none()
    if account is None or row is None:
        raise JobNotFound("no such video")
    return row


def work_done(row: Row) -> float:
    """The predicted GPU-seconds of the work that the current attempt has finished."""
    if (stage := to_stage(row["stage"])) is None:
        return 0.0
    seconds, order = asdict(to_predicted(row["predicted"])), list(Stage)
    finished = sum(seconds[name] for name in _CHARGED if order.index(name) < order.index(stage))
    part = min(row["stage_done"] / max(row["stage_total"], 1), 1.0)
    return float(finished + (seconds[stage] * part if stage in _CHARGED else 0.0))
