"""Liveness, readiness and metrics."""

from contextlib import suppress

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client.exposition import choose_encoder
from pydantic import BaseModel

from filmgate.api.auth import Operator
from filmgate.api.openapi import PROBLEMS
from filmgate.api.services import Services, services_of
from filmgate.errors import ObjectNotFound, StoreForbidden
from filmgate.jobs import JobId, TenantId
from filmgate.store.base import ObjectName
from filmgate.telemetry.readiness import OK, Readiness, is_ready

router = APIRouter(tags=["health"], responses=PROBLEMS)
_PROBE = ObjectName(TenantId("readiness"), JobId(f"video_{0:032x}"), "probe")


class Health(BaseModel):
    """Liveness."""

    status: str = "ok"


class ReadinessAnswer(BaseModel):
    """Readiness per component: "ok" or an error code."""

    is_ready: bool
    parts: dict[str, str]


@router.get("/healthz")
async def healthz() -> Health:
    """The process responds; nothing else is checked."""
    return Health()


router.head("/healthz", include_in_schema=False)(healthz)


@router.get(
    "/readyz",
    response_model=ReadinessAnswer,
    responses={503: {"model": ReadinessAnswer, "description": "Not ready for new work."}},
)
async def readyz(request: Request) -> JSONResponse:
    """Database and store are reachable and have space."""
    services = services_of(request)
    parts = await services.call(api_readiness(services).read)
    answer = ReadinessAnswer(is_ready=is_ready(parts), parts=parts)
    return JSONResponse(answer.model_dump(), 200 if answer.is_ready else 503)


router.head("/readyz", include_in_schema=False)(readyz)


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request, _operator: Operator) -> PlainTextResponse:
    """Prometheus metrics. Needs the `admin` scope, because metrics contain tenant names."""
    services = services_of(request)
    # Exemplars, which name traces, are only in the OpenMetrics format.
    encode, media_type = choose_encoder(request.headers.get("accept", ""))
    text = await services.call(encode, request.app.state.registry)
    return PlainTextResponse(text, media_type=media_type)


def api_readiness(services: Services) -> Readiness:
    """The checks of the API: the database answers, and the store answers and has space."""

    def check_queue() -> str:
        services.reader.backlog()
        return OK

    def check_store() -> str:
        if services.store.is_nearly_full():
            return "storage_full"
        # Any answer will do: a role may be allowed to read only what its tenants own.
        with suppress(ObjectNotFound, StoreForbidden):
            services.store.stat(_PROBE)
        return OK

    return Readiness({"queue": check_queue, "store": check_store})
