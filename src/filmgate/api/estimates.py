"""POST /v1/videos/estimate: what a video would cost and when it would be ready."""

from typing import Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel

from filmgate.admission.accept import RequestContext
from filmgate.api.auth import Creator, actor_of
from filmgate.api.forms import reading
from filmgate.api.openapi import PROBLEMS, form_body
from filmgate.api.schemas import Cost, CreateVideo, clip_fields, rounded, to_request
from filmgate.api.services import services_of
from filmgate.jobs import Idempotency, Route, ScreeningAction, TraceId

router = APIRouter(prefix="/v1/videos", tags=["videos"], responses=PROBLEMS)


class VideoEstimate(BaseModel):
    """The forecast of a request. Seconds are null while no live worker serves the model."""

    object: Literal["video.estimate"] = "video.estimate"
    model: str
    size: str
    seconds: str
    quality: str | None
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
        trace_id, wanted = TraceId(request.state.trace_id), to_request(body)
        context = RequestContext(caller, Idempotency(body.digest), trace_id, actor_of(request))

        def estimate() -> VideoEstimate:
            found = services.admission.estimate(context, wanted)
            return VideoEstimate(
                **clip_fields(services, found.ticket),
                queue_position=found.queue_position,
                starts_in_seconds=rounded(found.starts_in_seconds),
                ready_in_seconds=rounded(found.ready_in_seconds),
                slo_seconds=found.ticket.slo_seconds,
            )

        # A rejected prompt is written to the audit log.
        return await services.call_for_write(caller.id, estimate)
