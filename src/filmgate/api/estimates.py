"""POST /v1/videos/estimate: what a video would cost and when it would be ready."""

from typing import Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel

from filmgate.admission.accept import RequestContext
from filmgate.admission.quotes import Estimate
from filmgate.api.auth import Creator
from filmgate.api.openapi import PROBLEMS, form_body
from filmgate.api.schemas import Cost, CreateVideo, parse_form
from filmgate.api.services import services_of
from filmgate.api.videos import reading
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
        wanted = parse_form(CreateVideo, body).to_request(body.files)
        context = RequestContext(caller, Idempotency(body.digest), TraceId(request.state.trace_id))
        estimate = await services.call(services.admission.estimate, context, wanted)
    return to_shape(estimate, services.settings.usd_per_gpu_hour)


def to_shape(estimate: Estimate, usd_per_gpu_hour: float) -> VideoEstimate:
    """An estimate as JSON."""
    usd = estimate.usd
    if estimate.route is Route.GPU and usd_per_gpu_hour:
        usd = round(estimate.gpu_seconds / 3600 * usd_per_gpu_hour, 6)
    return VideoEstimate(
        model=estimate.spec.model,
        size=str(estimate.spec.size),
        seconds=f"{estimate.spec.seconds:g}",
        quality=estimate.spec.quality,
        route=estimate.route,
        screening=estimate.screening,
        cost=Cost(gpu_seconds=round(estimate.gpu_seconds, 3), is_measured=False, usd=usd),
        queue_position=estimate.queue_position,
        starts_in_seconds=_rounded(estimate.starts_in_seconds),
        ready_in_seconds=_rounded(estimate.ready_in_seconds),
        slo_seconds=estimate.slo_seconds,
    )


def _rounded(seconds: float | None) -> float | None:
    return round(seconds, 1) if seconds is not None else None
