"""Liveness, readiness and metrics."""

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from pydantic import BaseModel

from filmgate.api.auth import Operator
from filmgate.api.openapi import PROBLEMS
from filmgate.api.services import Services, services_of
from filmgate.errors import FilmgateError

router = APIRouter(tags=["health"], responses=PROBLEMS)


class Health(BaseModel):
    """Liveness."""

    status: str = "ok"


class Readiness(BaseModel):
    """Readiness per component: "ok" or an error code."""

    is_ready: bool
    parts: dict[str, str]


@router.get("/healthz")
async def healthz() -> Health:
    """The process responds; nothing else is checked."""
    return Health()


@router.get("/readyz", responses={503: {"model": Readiness, "description": "Not ready for new work."}})
async def readyz(request: Request) -> JSONResponse:
    """Database and store are reachable and have space."""
    services = services_of(request)
    parts = await services.call(_check, services)
    is_ready = set(parts.values()) == {"ok"}
    readiness = Readiness(is_ready=is_ready, parts=parts)
    return JSONResponse(readiness.model_dump(), 200 if is_ready else 503)


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request, _operator: Operator) -> PlainTextResponse:
    """Prometheus metrics. They contain tenant names: needs the scope `admin`."""
    services = services_of(request)
    registry: CollectorRegistry = request.app.state.registry
    text = await services.call(generate_latest, registry)
    return PlainTextResponse(text, media_type=CONTENT_TYPE_LATEST)


def _check(services: Services) -> dict[str, str]:
    return {"queue": _check_queue(services), "store": _check_store(services)}


def _check_queue(services: Services) -> str:
    try:
        services.reader.backlog()
    except FilmgateError as exc:
        return exc.code
    return "ok"


def _check_store(services: Services) -> str:
    try:
        return "storage_full" if services.store.room().is_low else "ok"
    except FilmgateError as exc:
        return exc.code
