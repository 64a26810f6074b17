"""Jobs as rows. Request text is encrypted when a row is written and decrypted when it is read."""

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, TypeAlias

import sqlalchemy as sa

from filmgate.database.records import read_record
from filmgate.database.schema import jobs
from filmgate.errors import KeyRefused
from filmgate.jobs import (
    Clip,
    Failure,
    Job,
    JobId,
    JobState,
    Progress,
    Reason,
    Route,
    RouteReason,
    Routing,
    Screening,
    ScreeningAction,
    Size,
    Source,
    SourceKind,
    Stage,
    StageSeconds,
    TenantId,
    Ticket,
    TraceId,
    VideoSpec,
    WorkerId,
)
from filmgate.store.keys.sealing import Sealer

Row: TypeAlias = sa.RowMapping | dict[str, Any]

_DEFAULT_ROUTING = Routing()

# Every column but the encrypted text.
UNSEALED = [column for column in jobs.c if column.name != "sealed_prompt"]


@dataclass(frozen=True, slots=True)
class StoredPrompt:
    """The request text as a row has it: encrypted, with a digest of the prompt under the tenant's key."""

    sealed: bytes
    hmac: str


def to_row(ticket: Ticket, now: float, prompt: StoredPrompt) -> dict[str, Any]:
    """The row of a new job."""
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
        "created_at": now,
        "deadline_at": now + ticket.slo_seconds,
        "slo_class": ticket.slo_class,
        "slo_target": ticket.slo_target,
        "predicted_gpu_seconds": ticket.predicted.gpu_seconds,
        "predicted": _to_json(ticket.predicted),
        "spec": from_spec(ticket.spec),
        "sealed_prompt": prompt.sealed,
        "screening": _to_json(ticket.screening),
        "body_digest": ticket.idempotency.body_digest,
        "prompt_hmac": prompt.hmac,
        "idempotency_key": ticket.idempotency.key,
        "awaits_original": ticket.idempotency.is_retry,
    }


def first_job(ticket: Ticket, now: float) -> Job:
    """The job of a ticket accepted now: equal to `to_job` of its row."""
    return Job(
        id=ticket.job_id,
        tenant_id=ticket.tenant_id,
        trace_id=ticket.trace_id,
        span_id=ticket.span_id,
        spec=ticket.spec,
        route=ticket.route,
        state=JobState.QUEUED,
        revision=1,
        created_at=now,
        deadline_at=now + ticket.slo_seconds,
        slo_class=ticket.slo_class,
        slo_target=ticket.slo_target,
        predicted=ticket.predicted,
        screening=ticket.screening,
        routing=ticket.routing,
    )


def _to_json(record: StageSeconds | Screening | Routing) -> str:
    return json.dumps(asdict(record))


def seal_prompt(sealer: Sealer, ticket: Ticket) -> bytes:
    """The encrypted request text of a ticket, bound to its job id."""
    text = json.dumps([ticket.spec.prompt, ticket.spec.negative_prompt])
    return sealer.seal(ticket.tenant_id, text.encode(), ticket.job_id)


def open_prompt(sealer: Sealer, row: Row) -> tuple[str, str | None]:
    """Prompt and negative prompt. Raises KeyRefused when the tenant's key is destroyed."""
    prompt, negative_prompt = json.loads(
        sealer.open(TenantId(row["tenant_id"]), row["sealed_prompt"], row["id"])
    )
    return prompt, negative_prompt


def to_job(row: Row, sealer: Sealer | None) -> Job:
    """The job of a row. The prompt is "" without a sealer or when the tenant's key is destroyed."""
    spec = to_spec(row["spec"])
    if sealer is not None:
        with suppress(KeyRefused):
            prompt, negative_prompt = open_prompt(sealer, row)
            spec = replace(spec, prompt=prompt, negative_prompt=negative_prompt)
    return Job(
        id=JobId(row["id"]),
        tenant_id=TenantId(row["tenant_id"]),
        trace_id=TraceId(row["trace_id"]),
        span_id=row["span_id"],
        spec=spec,
        route=Route(row["route"]),
        state=JobState(row["state"]),
        revision=row["revision"],
        created_at=row["created_at"],
        deadline_at=row["deadline_at"],
        slo_class=row["slo_class"],
        slo_target=row["slo_target"],
        predicted=to_predicted(row["predicted"]),
        screening=_to_screening(row["screening"]),
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
        failure=_to_failure(row["failure"]),
    )


def to_predicted(text: str) -> StageSeconds:
    return read_record(StageSeconds, json.loads(text))


def to_measured(row: Row) -> StageSeconds | None:
    return read_record(StageSeconds, json.loads(row["measured"])) if row["measured"] else None


def to_clip(text: str | None) -> Clip | None:
    return read_record(Clip, json.loads(text)) if text else None


def from_clip(clip: Clip) -> str:
    return json.dumps(asdict(clip))


def from_routing(routing: Routing) -> str | None:
    """NULL for the default route, which most jobs take."""
    return None if routing == _DEFAULT_ROUTING else _to_json(routing)


def to_routing(text: str | None) -> Routing:
    if text is None:
        return _DEFAULT_ROUTING
    stored = json.loads(text)
    return read_record(
        Routing, stored | {"reason": RouteReason(stored["reason"]), "changes": tuple(stored["changes"])}
    )


def from_failure(failure: Failure) -> str:
    return json.dumps(asdict(failure))


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
    source = _to_source(stored.pop("source", None))
    scaled_to = stored.pop("scaled_to", None)
    known = {name: stored.pop(name) for name in _SPEC_FIELDS & stored.keys()}
    return VideoSpec(**known, source=source, scaled_to=Size(*scaled_to) if scaled_to else None, extra=stored)


_SPEC_FIELDS = {f.name for f in fields(VideoSpec)} - {"source", "scaled_to", "extra"}


def _to_source(stored: dict[str, Any] | None) -> Source | None:
    if stored is None:
        return None
    return read_record(Source, stored | {"kind": SourceKind(stored["kind"])})


def _to_screening(text: str) -> Screening:
    stored = json.loads(text)
    return Screening(
        action=ScreeningAction(stored["action"]),
        rules=tuple(stored["rules"]),
        categories=tuple(stored.get("categories", ())),
    )


def _to_failure(text: str | None) -> Failure | None:
    if text is None:
        return None
    stored = json.loads(text)
    return Failure(reason=Reason(stored["reason"]), message=stored["message"])


def to_stage(text: str | None) -> Stage | None:
    """The stage; None if there is none, or one of a newer version."""
    return Stage(text) if text in set(Stage) else None


def _to_progress(row: Row) -> Progress | None:
    stage = to_stage(row["stage"])
    if stage is None:
        return None
    return Progress(stage, row["stage_done"], row["stage_total"], row["fraction"])
