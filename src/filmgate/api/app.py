"""The HTTP application: routes, uniform errors, a request id on every response."""

import asyncio
import re
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version

from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from filmgate.api import (
    console,
    content,
    estimates,
    events,
    health,
    live,
    models,
    operators,
    plan,
    tenants,
    videos,
)
from filmgate.api.edge import Edge, address_of
from filmgate.api.problems import install_problems, internal_error, to_response
from filmgate.api.services import Services
from filmgate.api.watch import Watch
from filmgate.errors import RateLimited
from filmgate.jobs import new_trace_id
from filmgate.telemetry import metrics
from filmgate.telemetry.logs import Log

log = Log("api")

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
# As nginx counts it: the client closed the connection before the response.
_CLIENT_GONE = 499
_MAX_DELAY_SECONDS = 0.5
_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
_DESCRIPTION = "Video generation on GPUs you control. Works with the `openai` SDK: point `base_url` at `/v1`."


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
        docs_url=None,  # FastAPI's pages load scripts from other servers
        redoc_url=None,
    )
    edge = Edge(services.limits, registry)
    app.state.services, app.state.watch, app.state.registry = services, watch, registry
    app.state.edge = edge
    for part in (estimates, videos, content, live, events, models, operators, plan, tenants, health, console):
        app.include_router(part.router)
    install_problems(app)
    app.add_middleware(AddressLimit, edge=edge)
    if origins := [origin.strip() for origin in services.settings.cors_origins.split(",") if origin.strip()]:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "retry-after", "openai-poll-after-ms"],
        )
    app.add_middleware(Tracing, meter=HttpMeter(registry))
    return app


class HttpMeter:
    """Counts requests by route template and status; ids never become labels."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = metrics.HTTP_REQUESTS.live_counter(registry)
        self._seconds = metrics.HTTP_REQUEST_SECONDS.live_histogram(registry)

    def count(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "unknown")
        # A client may invent methods: only known ones become labels.
        is_known = route != "unknown" and scope["method"] in _METHODS
        method = scope["method"] if is_known else "unknown"
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(seconds)


class Tracing:
    """Gives every request an id, continues the caller's trace and counts the response."""

    def __init__(self, app: ASGIApp, meter: HttpMeter) -> None:
        self._app = app
        self._meter = meter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = f"req_{secrets.token_hex(12)}"
        scope.setdefault("state", {})["trace_id"] = _trace_id(scope)
        started, has_responded = time.perf_counter(), False

        async def send_with_id(message: Message) -> None:
            nonlocal has_responded
            if message["type"] == "http.response.start":
                has_responded = True
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
                self._meter.count(scope, message["status"], time.perf_counter() - started)
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except ClientDisconnect:
            self._meter.count(scope, _CLIENT_GONE, time.perf_counter() - started)
        except Exception as error:
            log.error("request failed", error=error, request_id=request_id)  # noqa: TRY400 - the line has the location
            if has_responded:
                raise
            await internal_error()(scope, receive, send_with_id)


class AddressLimit:
    """Refuses requests of an address that sends too many, before anything else is done for them.

    A refusal is delayed, so that a client that does not wait cannot repeat it at full speed. Liveness is not
    limited.
    """

    def __init__(self, app: ASGIApp, edge: Edge) -> None:
        self._app = app
        self._edge = edge

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_limited = scope["type"] == "http" and scope["path"] != "/healthz"
        wait = self._edge.take_address(address_of(scope)) if is_limited else 0.0
        if not wait:
            await self._app(scope, receive, send)
            return
        await asyncio.sleep(min(wait, _MAX_DELAY_SECONDS))
        refusal = RateLimited("this address sends too many requests; slow down", retry_after_seconds=wait)
        await to_response(refusal)(scope, receive, send)


def _trace_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"traceparent" and (match := _TRACEPARENT.fullmatch(value.decode("latin-1"))):
            return match[1]
    return new_trace_id()
