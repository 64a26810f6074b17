"""Tickets, specs and clips with defaults for tests."""

import secrets
from dataclasses import replace

from filmgate.jobs import (
    Clip,
    Idempotency,
    Job,
    JobState,
    Share,
    StageSeconds,
    TenantId,
    Ticket,
    VideoSpec,
    WorkerId,
)
from filmgate.scheduling.base import AttemptResult, Offer

PROMPT = "a red ball bounces on the grass"
SPEC = VideoSpec(
    model="flipbook",
    prompt=PROMPT,
    width=128,
    height=128,
    seconds=2.0,
    fps=16,
    steps=8,
    seed=7,
    guidance=1.0,
)
PREDICTED = StageSeconds(text=1.0, denoise=6.0, decode=3.0, upload=0.5)
RESULT = AttemptResult(Clip("clip-1.mp4", 1000, "ab" * 32), StageSeconds(text=1.0, denoise=5.0, decode=2.0))


def make_spec(**fields):
    return replace(SPEC, **fields)


def make_ticket(
    tenant="acme", *, gpu_seconds=None, share=Share(), idempotency=None, slo_seconds=90.0, **spec
):
    predicted = PREDICTED if gpu_seconds is None else StageSeconds(denoise=gpu_seconds)
    return Ticket(
        tenant_id=TenantId(tenant),
        spec=replace(SPEC, **spec),
        predicted=predicted,
        slo_seconds=slo_seconds,
        share=share,
        idempotency=idempotency or Idempotency(body_digest=secrets.token_hex(16)),
    )


def queued_job(ticket, now):
    """The job of a ticket that was accepted now."""
    return Job(
        id=ticket.job_id,
        tenant_id=ticket.tenant_id,
        trace_id=ticket.trace_id,
        spec=ticket.spec,
        route=ticket.route,
        state=JobState.QUEUED,
        revision=1,
        created_at=now,
        deadline_at=now + ticket.slo_seconds,
        predicted=ticket.predicted,
        screening=ticket.screening,
        span_id=ticket.span_id,
    )


def make_offer(worker="worker-1", *, models=("flipbook",), **fields):
    return Offer(worker_id=WorkerId(worker), models=models, device="cpu", **fields)
