"""Spans of the request path. Off unless an OTLP endpoint is set: then nothing is recorded or imported.

Only listed attributes are exported and errors are named by type, so request text cannot be exported.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from filmgate.errors import FilmgateError, SettingsError
from filmgate.settings import TraceSettings
from filmgate.telemetry.findings import INSTALL_TELEMETRY
from filmgate.telemetry.trace_context import TraceContext, current_trace, within_trace
from filmgate.telemetry.untraced import NO_SPAN, NO_TRACER

Attribute = str | int | float | bool | None

# The attributes of spans and events, by the name that is exported: ids, numbers and values of closed sets.
ATTRIBUTES: Mapping[str, str] = {
    "method": "http.request.method",
    "http_route": "http.route",
    "status": "http.response.status_code",
    "error": "error.type",
    "request_id": "filmgate.request.id",
    "job_id": "filmgate.job.id",
    "tenant_id": "filmgate.tenant.id",
    "worker_id": "filmgate.worker.id",
    "instance_id": "host.id",
    "route": "filmgate.route",
    "reason": "filmgate.route.reason",
    "action": "filmgate.screening.action",
    "model": "filmgate.model.name",
    "version": "filmgate.model.version",
    "attempt": "filmgate.attempt",
    "state": "filmgate.job.state",
    "frames": "filmgate.frames",
    "steps": "filmgate.steps",
    "width": "filmgate.width",
    "height": "filmgate.height",
    "size_bytes": "filmgate.size_bytes",
    "provider": "filmgate.provider.name",
    "polls": "filmgate.provider.polls",
    "device": "filmgate.gpu.name",
    "gpu_uuid": "filmgate.gpu.uuid",
    "gpu_utilization": "filmgate.gpu.utilization",
    "gpu_sm_clock_mhz": "filmgate.gpu.sm_clock_mhz",
    "gpu_temperature": "filmgate.gpu.temperature_celsius",
    "gpu_power_watts": "filmgate.gpu.power_watts",
    "gpu_memory_bytes": "filmgate.gpu.memory_bytes",
}


class Span(Protocol):
    """A unit of work that is being recorded."""

    @property
    def context(self) -> TraceContext:
        """The parent of spans within this one."""
        ...

    def set(self, **attributes: Attribute) -> None:
        """Add attributes. Raises ValueError for a name that is not in ATTRIBUTES."""
        ...

    def event(self, name: str, at: float, **attributes: Attribute) -> None:
        """Add an event at a Unix time."""
        ...

    def rename(self, name: str) -> None:
        """Change the name, where it is known only at the end."""
        ...

    def end(self, error: BaseException | None = None, at: float | None = None) -> None:
        """End the span now or at a Unix time. Only the type of an error is recorded."""
        ...


class Tracer(Protocol):
    """Records spans and exports them in the background. No method raises because the export fails."""

    @property
    def is_on(self) -> bool:
        """Whether spans are recorded. Check it before preparing costly attributes."""
        ...

    def start(
        self,
        name: str,
        parent: TraceContext,
        *,
        kind: str = "internal",
        at: float | None = None,
        links: tuple[TraceContext, ...] = (),
    ) -> Span:
        """Start a span now or at a Unix time; `kind` is internal, server, client or consumer."""
        ...

    def close(self) -> None:
        """Export what is left, within `traces.timeout_seconds`."""
        ...


def open_tracer(settings: TraceSettings, service: str) -> Tracer:
    """The tracer of this process: `service` is api or worker. Raises SettingsError without the extra."""
    if not settings.endpoint:
        return NO_TRACER
    try:
        from filmgate.telemetry.otlp import OtlpTracer  # noqa: PLC0415 - an extra, imported only if it is used
    except ModuleNotFoundError as exc:
        message = f"traces need the OpenTelemetry SDK; {INSTALL_TELEMETRY}"
        raise SettingsError(message, option="traces.endpoint") from exc
    return OtlpTracer(settings, service)


@contextmanager
def traced(tracer: Tracer, name: str, **attributes: Attribute) -> Iterator[Span]:
    """A span around the block, a child of the current one. Outside of a trace nothing is recorded."""
    parent = current_trace() if tracer.is_on else None
    if parent is None:
        yield NO_SPAN
        return
    with ended(tracer.start(name, parent)) as span, within_trace(span.context):
        span.set(**attributes)
        yield span


@contextmanager
def ended(span: Span) -> Iterator[Span]:
    """A span that ends with the block, and records its error."""
    try:
        yield span
    except BaseException as exc:
        span.end(exc)
        raise
    span.end()


def error_type(error: BaseException) -> str:
    """How an error is named in a trace: its code, or its class. Its message may quote the request."""
    return error.code if isinstance(error, FilmgateError) else type(error).__name__


def exported_attributes(attributes: Mapping[str, Attribute]) -> dict[str, str | int | float | bool]:
    """The attributes under their exported names; None values are left out. Raises ValueError."""
    unknown = attributes.keys() - ATTRIBUTES.keys()
    if unknown:
        raise ValueError(f"{sorted(unknown)} must not be exported; see telemetry/tracing.py")
    return {ATTRIBUTES[name]: value for name, value in attributes.items() if value is not None}
