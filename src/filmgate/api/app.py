"""The HTTP application: routes, uniform errors, a request id on every response."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version

from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route

from filmgate.api import (
    audit,
    console,
    content,
    events,
    health,
    live,
    models,
    operators,
    plan,
    slo,
    tenants,
    usage,
    videos,
)
from filmgate.api.edge import AddressLimit
from filmgate.api.openapi import install_document
from filmgate.api.problems import install_problems
from filmgate.api.services import Services
from filmgate.api.tracing import HttpMeter, Tracing
from filmgate.api.watch import Watch
from filmgate.telemetry.trace_context import TRACEPARENT, XRAY_HEADER

# Routes are tried in order: liveness comes first, so that it costs little while the server is attacked.
PARTS = (
    health,
    videos,
    content,
    live,
    events,
    models,
    operators,
    usage,
    audit,
    slo,
    plan,
    tenants,
    console,
)
# What a page of another origin may read, besides the type and length of a response.
_EXPOSED_HEADERS = (
    "x-request-id",
    "retry-after",
    "x-should-retry",
    "openai-poll-after-ms",
    "preference-applied",
    "content-range",
    "etag",
    TRACEPARENT,
    XRAY_HEADER,
)
_DESCRIPTION = "Video generation on your own GPUs. Works with the `openai` SDK: set `base_url` to `/v1`."


def build_app(services: Services, registry: CollectorRegistry) -> FastAPI:
    """The application with these services."""
    watch = Watch(services, partial(events.format_events, services))

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        await watch.close()
        services.close()

    app = FastAPI(
        title="Filmgate",
        version=version("filmgate"),
        description=_DESCRIPTION,
        lifespan=lifespan,
        # A redirect would repeat the Host header of the request.
        redirect_slashes=False,
        openapi_url=None,  # FastAPI builds the document on the event loop: see `install_document`
        docs_url=None,  # FastAPI's pages load scripts from other servers
        redoc_url=None,
    )
    services.edge.export_metrics(registry)
    app.state.services, app.state.watch, app.state.registry = services, watch, registry
    for part in PARTS:
        app.include_router(part.router)
    install_document(app)
    install_problems(
        app, [route for part in PARTS for route in part.router.routes if isinstance(route, Route)]
    )
    app.add_middleware(AddressLimit, edge=services.edge)
    if origins := [origin.strip() for origin in services.settings.cors_origins.split(",") if origin.strip()]:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=_EXPOSED_HEADERS,
        )
    app.add_middleware(Tracing, meter=HttpMeter(registry), tracer=services.tracer)
    return app
