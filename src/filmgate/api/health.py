"""Is it alive, is it ready, what does it count."""

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from pydantic import BaseModel

from filmgate.api.auth import Operator
from filmgate.api.openapi import PROBLEMS
from filmgate.api.services import Stations, stations_of
from filmgate.errors import FilmgateError

router = APIRouter(tags=["health"], responses=PROBLEMS)


class Health(BaseModel):
    """Whether the process answers."""

    status: str = "ok"


class Readiness(BaseModel):
    """Whether new work would be accepted, part by part: "ok" or the code of what is wrong."""

    is_ready: bool
    parts: dict[str, str]


@router.get("/healthz")
async def healthz() -> Health:
    """The process answers; nothing else is looked at."""
    return Health()


@router.get("/readyz", responses={503: {"model": Readiness, "description": "No new work is accepted."}})
async def readyz(request: Request) -> JSONResponse:
    """Database and store can be used and have room."""
    stations = stations_of(request)
    parts = await stations.call(_inspect, stations)
    is_ready = set(parts.values()) == {"ok"}
    readiness = Readiness(is_ready=is_ready, parts=parts)
    return JSONResponse(readiness.model_dump(), 200 if is_ready else 503)


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request, _operator: Operator) -> PlainTextResponse:
    """Prometheus metrics. They name tenants, so that a key with the scope `admin` is needed."""
    stations = stations_of(request)
    registry: CollectorRegistry = request.app.state.registry
    text = await stations.call(generate_latest, registry)
    return PlainTextResponse(text, media_type=CONTENT_TYPE_LATEST)


def _inspect(stations: Stations) -> dict[str, str]:
    return {"queue": _check_queue(stations), "store": _check_store(stations)}


def _check_queue(stations: Stations) -> str:
    try:
        stations.queue.backlog()
    except FilmgateError as exc:
        return exc.code
    return "ok"


def _check_store(stations: Stations) -> str:
    try:
        return "storage_full" if stations.store.room().is_low else "ok"
    except FilmgateError as exc:
        return exc.code
