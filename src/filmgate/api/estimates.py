"""POST /v1/videos/estimate: what a video would cost and when it would be ready."""

from typing import Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel

from filmgate.admission.accept import RequestContext
from filmgate.admission.estimates import Estimate
from filmgate.api.auth import Creator, actor_of
from filmgate.api.forms import reading
from filmgate.api.openapi import PROBLEMS, form_body
from filmgate.api.schemas import Cost, CreateVideo, to_request
from filmgate.api.services import services_of
from filmgate.jobs import Idempotency, Route, ScreeningAction, TraceId

router = APIRouter(prefix="/v1/videos", tags=["videos"], responses=PROBLEMS)


class VideoEstimate(BaseModel):
    """The forecast of a request. Seconds are null while no live worker serves the model."""

    object: Literal["video.estimate"] = "video.estimate"
    model: str
    size: str
    seconds: str
    quality: str
    route: Route
    screening: ScreeningAction
    cost: Cost
    queue_position: int
    starts_in_seconds: float | None
    ready_in_seconds: float | None
    slo_seconds: float


@router.post("/estimate", openapi_extra=form_body(CreateVideo, file="input_reference"))
async def estimate_video(request: Request, caller: Creator) -> VideoEstimate:
    """Estimate cost and time of a video without creating it. Rejects what create would reject."""
    services = services_of(request)
    async with reading(request, caller) as body:
        trace_id = TraceId(request.state.trace_id)
        context = RequestContext(caller, Idempotency(body.digest), trace_id, actor_of(request))
        estimate = await services.call(services.admission.estimate, context, to_request(body))
    return _to_shape(estimate, services.settings.usd_per_gpu_hour)


def _to_shape(estimate: Estimate, usd_per_gpu_hour: float) -> VideoEstimate:
    ticket, spec = estimate.ticket, estimate.ticket.spec
    return VideoEstimate(
        model=spec.model,
        size=str(spec.size),
        seconds=f"{spec.seconds:g}",
        quality=spec.quality,
        route=ticket.route,
        screening=ticket.screening.action,
        cost=Cost.of(ticket, usd_per_gpu_hour),
        queue_position=estimate.queue_position,
        starts_in_seconds=_rounded(estimate.starts_in_seconds),
        ready_in_seconds=_rounded(estimate.ready_in_seconds),
        slo_seconds=ticket.slo_seconds,
    )


def _rounded(seconds: float | None) -> float | None:
    return round(seconds, 1) if seconds is not None else None
