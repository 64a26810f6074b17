"""What the audit log records about jobs: the entries of admissions, transitions, moves and deletions."""

import json
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from filmgate.audit.records import Action, Actor, Entry
from filmgate.database.schema import invocations
from filmgate.jobs import JobId, JobState, Reason, Route, Ticket
from filmgate.scheduling.base import Move, Provenance
from filmgate.scheduling.rows import Row, from_spec, to_clip, to_measured, to_routing

_ACTIONS = {
    JobState.QUEUED: Action.REQUEUED,
    JobState.RUNNING: Action.STARTED,
    JobState.COMPLETED: Action.COMPLETED,
    JobState.FAILED: Action.FAILED,
}
_FIND_INVOCATION = sa.select(invocations.c.provider, invocations.c.invocation).where(
    invocations.c.job_seq == sa.bindparam("the_seq")
)


def created(ticket: Ticket, actor: Actor, prompt_hmac: str) -> Entry:
    """A request became a job."""
    screening = ticket.screening
    details = {
        "prompt_hmac": prompt_hmac,
        "screening": screening.action.value,
        "rules": list(screening.rules) or None,
        "model": ticket.spec.model,
        "spec": json.loads(from_spec(ticket.spec)),
        "route": ticket.route.value,
        "route_reason": ticket.routing.reason.value,
        "trace": ticket.trace_id,
    }
    return Entry(Action.CREATED, ticket.job_id, actor, details=details)


def changed(row: Row, state: JobState, reason: Reason | None) -> Entry:
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


def completed(connection: sa.Connection, row: Row, provenance: Provenance, usd_per_gpu_hour: float) -> Entry:
    """A clip is durable: everything that explains it, so that this record alone is enough."""
    clip, measured = to_clip(row["clip"]), to_measured(row)
    assert clip is not None and measured is not None  # noqa: PT018 - set in this transaction
    spec = json.loads(row["spec"])
    gpu_usd = measured.gpu_seconds / 3600 * usd_per_gpu_hour if usd_per_gpu_hour else None
    is_managed = row["route"] == Route.MANAGED
    details = {
        "model": row["model"],
        "version": row["version"],
        "seed": spec.get("seed"),
        "spec": spec,
        "attempt": row["attempt"],
        "worker": row["worker_id"],
        "device": row["device"],
        "gpu": provenance.gpu_uuid,
        "instance": provenance.instance_id,
        "route": row["route"],
        "created_at": row["created_at"],
        "started_at": row["started_at"],
        "finished_at": row["finished_at"],
        "gpu_seconds": round(measured.gpu_seconds, 3),
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


def moved(row: Row, move: Move) -> Entry:
    """A queued job changed its route."""
    routing = move.routing
    details = {
        "from": row["route"],
        "route": move.route.value,
        "route_reason": routing.reason.value,
        "provider": routing.provider,
        "offer": routing.offer,
        "usd": routing.usd,
    }
    return Entry(Action.REROUTED, move.job_id, details=details)


def cancelled(row: Row, actor: Actor) -> Entry:
    """A caller asked to stop a job."""
    return Entry(Action.CANCELLED, JobId(row["id"]), actor, details={"state": row["state"]})


def deleted(row: Row, actor: Actor) -> Entry:
    """The row and the objects of a job were deleted. The digest still finds the record of the clip."""
    clip = to_clip(row["clip"])
    digest = clip.sha256 if clip is not None else None
    return Entry(Action.DELETED, JobId(row["id"]), actor, digest, {"state": row["state"]})
