"""Jobs as rows. Request text is encrypted when a row is written and decrypted when it is read."""

import json
from dataclasses import asdict, fields, replace
from typing import Any, TypeAlias

import sqlalchemy as sa

from filmgate.database.records import read_record
from filmgate.database.schema import jobs
from filmgate.errors import LeaseLost
from filmgate.jobs import (
    Clip,
    Failure,
    Job,
    JobId,
    JobState,
    Lease,
    Progress,
    Route,
    Routing,
    Screening,
    Stage,
    StageSeconds,
    TenantId,
    Ticket,
    TraceId,
    VideoSpec,
    WorkerId,
)
from filmgate.jobs.routing import DEFAULT_ROUTING
from filmgate.store.keys.data_keys import Sealer

Row: TypeAlias = sa.RowMapping | dict[str, Any]

# Every column but the encrypted text.
UNSEALED = [column for column in jobs.c if column.name != "sealed_prompt"]

# Which rows can be leased: queued ones, and those whose lease or backoff is over.
IS_READY = sa.text("jobs.state = 'queued' AND jobs.wake_at IS NULL")
# The server's clock went back by more than any correction does: the lease is from before that.
_CLOCK_STEP_SECONDS = 60.0
_STEADY_NOW: sa.BindParameter[float] = sa.bindparam("steady_now", type_=sa.Double)
IS_DUE = sa.or_(
    jobs.c.wake_at <= _STEADY_NOW, jobs.c.wake_set_at - sa.literal(_CLOCK_STEP_SECONDS) > _STEADY_NOW
)


def seconds_until_due(row: Row, steady_now: float) -> float:
    """Until a lease or a backoff is over; 0.0 where IS_DUE is true."""
    if row["wake_set_at"] - _CLOCK_STEP_SECONDS > steady_now:
        return 0.0
    return max(float(row["wake_at"] - steady_now), 0.0)


# Of queued jobs that wait: handed back with a pause, and not for another try or by a drain. Nothing limits
# how often that happens, so they do not bypass fair share when the pause is over.
IS_PAUSED = sa.and_(
    sa.text("jobs.state = 'queued'"), jobs.c.fence > jobs.c.attempt, jobs.c.wake_at > jobs.c.wake_set_at
)


def is_paused(row: Row) -> bool:
    """IS_PAUSED, of a row."""
    is_handed_back = row["state"] == JobState.QUEUED and row["fence"] > row["attempt"]
    return is_handed_back and bool(row["wake_at"] > row["wake_set_at"])


def ready_heads(*columns: sa.Column[Any]) -> sa.Select[Any]:
    """The ready jobs of one tenant, route and model, in the order in which they are leased."""
    return (
        sa.select(*columns)
        .where(
            jobs.c.tenant_id == sa.bindparam("own"),
            jobs.c.route == sa.bindparam("route"),
            jobs.c.model == sa.bindparam("model"),
            IS_READY,
        )
        .order_by(jobs.c.deadline_at, jobs.c.seq)
        .limit(sa.bindparam("most"))
    )


def lease_lost(lease: Lease) -> LeaseLost:
    """The error of a write with a stale fence."""
    return LeaseLost(f"the lease of {lease.job.id} with fence {lease.fence} has ended")


def to_row(ticket: Ticket, sealer: Sealer, prompt_hmac: str) -> dict[str, Any]:
    """The row of a new job, without its times. The request text is bound to the job's id.

    `prompt_hmac` is the digest of the prompt under the tenant's key.
    """
    text = json.dumps([ticket.spec.prompt, ticket.spec.negative_prompt])
    return {
        "id": ticket.job_id,
        "tenant_id": ticket.tenant_id,
        "trace_id": ticket.trace_id,
        "span_id": ticket.span_id,
        "route": ticket.route,
        "routing": from_routing(ticket.routing),
        "model": ticket.spec.model,
        "state": JobState.QUEUED,
        "revision": 1,
        "attempt": 0,
        "fence": 0,
        "is_cancelling": False,
        "slo_class": ticket.slo_class,
        "slo_target": ticket.slo_target,
        "predicted_gpu_seconds": ticket.predicted.gpu_seconds,
        "predicted": to_json(ticket.predicted),
        "spec": from_spec(ticket.spec),
        "sealed_prompt": sealer.seal(ticket.tenant_id, text.encode(), ticket.job_id),
        "screening": to_json(ticket.screening),
        "body_digest": ticket.idempotency.body_digest,
        "prompt_hmac": prompt_hmac,
        "idempotency_key": ticket.idempotency.key,
        "awaits_original": ticket.idempotency.is_retry,
    }


def to_json(record: StageSeconds | Screening | Routing | Clip | Failure) -> str:
    return json.dumps(asdict(record))


def open_prompt(sealer: Sealer, row: Row) -> tuple[str, str | None]:
    """Prompt and negative prompt. Raises KeyRefused when the tenant's key is destroyed."""
    prompt, negative_prompt = json.loads(
        sealer.open(TenantId(row["tenant_id"]), row["sealed_prompt"], row["id"])
    )
    return prompt, negative_prompt


def to_job(row: Row, texts: tuple[str, str | None] = ("", None)) -> Job:
    """The job of a row. `texts` are its prompt and negative prompt where they are known."""
    prompt, negative_prompt = texts
    return Job(
        id=JobId(row["id"]),
        tenant_id=TenantId(row["tenant_id"]),
        trace_id=TraceId(row["trace_id"]),
        span_id=row["span_id"],
        spec=replace(to_spec(row["spec"]), prompt=prompt, negative_prompt=negative_prompt),
        route=Route(row["route"]),
        state=JobState(row["state"]),
        revision=row["revision"],
        created_at=row["created_at"],
        deadline_at=row["deadline_at"],
        slo_class=row["slo_class"],
        slo_target=row["slo_target"],
        predicted=to_predicted(row["predicted"]),
        screening=read_record(Screening, json.loads(row["screening"])),
        routing=to_routing(row["routing"]),
        attempt=row["attempt"],
        fence=row["fence"],
        progress=_to_progress(row),
        is_cancelling=row["is_cancelling"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        expires_at=row["expires_at"],
        worker_id=WorkerId(row["worker_id"]) if row["worker_id"] else None,
        device=row["device"],
        version=row["version"],
        measured=to_measured(row),
        clip=to_clip(row["clip"]),
        failure=read_record(Failure, json.loads(row["failure"])) if row["failure"] else None,
    )


def to_predicted(text: str) -> StageSeconds:
    return read_record(StageSeconds, json.loads(text))


def to_measured(row: Row) -> StageSeconds | None:
    return read_record(StageSeconds, json.loads(row["measured"])) if row["measured"] else None


def to_clip(text: str | None) -> Clip | None:
    return read_record(Clip, json.loads(text)) if text else None


def from_routing(routing: Routing) -> str | None:
    """NULL for the default route, which most jobs take."""
    return None if routing == DEFAULT_ROUTING else to_json(routing)


def to_routing(text: str | None) -> Routing:
    if text is None:
        return DEFAULT_ROUTING
    return read_record(Routing, json.loads(text))


def from_progress(progress: Progress | None) -> dict[str, object]:
    """The progress columns; None resets them."""
    return {
        "stage": progress and progress.stage,
        "stage_done": progress and progress.done,
        "stage_total": progress and progress.total,
        "fraction": progress and progress.fraction,
    }


def from_spec(spec: VideoSpec) -> str:
    """The spec without its texts, which are encrypted apart. Unknown fields keep their values."""
    known = asdict(replace(spec, prompt="", negative_prompt=None, extra={}))
    del known["extra"]
    return json.dumps(dict(spec.extra) | known)


def to_spec(text: str) -> VideoSpec:
    """The spec of a row. Fields that a newer version wrote are kept in `extra`."""
    stored = json.loads(text)
    extra = {name: stored.pop(name) for name in stored.keys() - _SPEC_FIELDS}
    return read_record(VideoSpec, stored | {"extra": extra})


_SPEC_FIELDS = {f.name for f in fields(VideoSpec)}


def to_stage(text: str | None) -> Stage | None:
    """The stage; None if there is none, or one of a newer version."""
    return Stage(text) if text in set(Stage) else None


def _to_progress(row: Row) -> Progress | None:
    stage = to_stage(row["stage"])
    if stage is None:
        return None
    return Progress(stage, row["stage_done"], row["stage_total"], row["fraction"])
