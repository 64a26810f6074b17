"""The HTTP application: routes, uniform errors, a request id on every response."""

import re
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version

from fastapi import FastAPI
from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from filmgate.api import content, events, health, live, models, tenants, videos
from filmgate.api.problems import install_problems, internal_error
from filmgate.api.services import Services
from filmgate.api.watch import Watch
from filmgate.jobs import new_trace_id
from filmgate.telemetry.logs import Log

log = Log("api")

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

    app = FastAPI(title="Filmgate", version=version("filmgate"), description=_DESCRIPTION, lifespan=lifespan)
    app.state.services, app.state.watch, app.state.registry = services, watch, registry
    for part in (videos, content, live, events, models, tenants, health):
        app.include_router(part.router)
    install_problems(app)
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
        labels = ("method", "route", "status")
        self._requests = Counter("filmgate_http_requests_total", "HTTP requests.", labels, registry=registry)
        self._seconds = Histogram(
            "filmgate_http_request_seconds",
            "Seconds until the first byte of the response.",
            ("method", "route"),
            registry=registry,
        )

    def count(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "unknown")
        method = scope["method"] if route != "unknown" else "unknown"
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
        except Exception as error:
            log.error("request failed", error=error, request_id=request_id)  # noqa: TRY400 - the line has the location
            if has_responded:
                raise
            await internal_error()(scope, receive, send_with_id)


def _trace_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"traceparent" and (match := _TRACEPARENT.fullmatch(value.decode("latin-1"))):
            return match[1]
    return new_trace_id()
