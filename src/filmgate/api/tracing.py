"""The outermost layer of the API: a request id and a trace for every request, and its metrics."""

import asyncio
import secrets
import time

from prometheus_client import CollectorRegistry
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from filmgate.api.problems import internal_error, server_stopping
from filmgate.telemetry import metrics
from filmgate.telemetry.logs import Log
from filmgate.telemetry.trace_context import TraceContext, read_trace_headers, trace_headers, within_trace
from filmgate.telemetry.tracing import Span, Tracer
from filmgate.telemetry.untraced import NO_TRACER

log = Log("api")

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
# The status that nginx logs if the client closes the connection before the response.
_CLIENT_CLOSED_REQUEST = 499
# Probes and scrapes would be most of all traces.
_UNTRACED = frozenset({"/healthz", "/readyz", "/metrics"})


class HttpMeter:
    """Counts requests by route template and status; ids never become labels."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = metrics.HTTP_REQUESTS.live_counter(registry)
        self._seconds = metrics.HTTP_REQUEST_SECONDS.live_histogram(registry)

    def count(self, scope: Scope, status: int, seconds: float, trace: TraceContext) -> None:
        route = route_of(scope)
        # A client may invent methods: only known ones become labels.
        is_known = route != "unknown" and scope["method"] in _METHODS
        method = scope["method"] if is_known else "unknown"
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(seconds, {"trace_id": trace.trace_id})


class Tracing:
    """Gives every request an id, continues the caller's trace and counts the response."""

    def __init__(self, app: ASGIApp, meter: HttpMeter, tracer: Tracer = NO_TRACER) -> None:
        self._app = app
        self._meter = meter
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = f"req_{secrets.token_hex(12)}"
        tracer = NO_TRACER if scope["path"] in _UNTRACED else self._tracer
        span = tracer.start("HTTP", _read_trace(scope), kind="server")
        trace = span.context
        scope.setdefault("state", {}).update(trace_id=trace.trace_id, request_id=request_id)
        ids = {"x-request-id": request_id} | trace_headers(trace)
        started, status = time.perf_counter(), 0
        failure: Exception | None = None

        async def send_with_ids(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                added = [(name.encode(), value.encode()) for name, value in ids.items()]
                message["headers"] = [*message.get("headers", ()), *added]
                self._meter.count(scope, status, time.perf_counter() - started, trace)
            await send(message)

        with within_trace(trace):
            try:
                await self._app(scope, receive, send_with_ids)
            except ClientDisconnect:
                status = _CLIENT_CLOSED_REQUEST
                self._meter.count(scope, status, time.perf_counter() - started, trace)
            except asyncio.CancelledError:
                # uvicorn ends what still runs when it has waited long enough: its answer would be a bare 500.
                if status:
                    raise
                await server_stopping()(scope, receive, send_with_ids)
            except Exception as error:
                failure = error
                log.error("request failed", error=error, request_id=request_id)  # noqa: TRY400 - the line has the location
                if status:
                    raise
                await internal_error()(scope, receive, send_with_ids)
            finally:
                span.set(request_id=request_id, status=status or None)
                _end(span, scope, failure)


def route_of(scope: Scope) -> str:
    """The template of the route, never the path itself."""
    return getattr(scope.get("route"), "path_format", "unknown")


def _end(span: Span, scope: Scope, failure: Exception | None) -> None:
    method = scope["method"] if scope["method"] in _METHODS else "_OTHER"
    span.set(method=method, http_route=route_of(scope))
    span.rename(f"{method} {route_of(scope)}")
    span.end(failure)


def _read_trace(scope: Scope) -> TraceContext:
    named = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"])
    return read_trace_headers(named)
