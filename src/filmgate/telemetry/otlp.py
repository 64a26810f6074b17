"""Spans exported by OTLP over HTTP. Only this module imports the OpenTelemetry SDK."""

from contextvars import ContextVar
from importlib.metadata import version

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)
from opentelemetry.trace import Span as SdkSpan

from filmgate.jobs import SpanId, TraceId
from filmgate.settings import TraceSettings
from filmgate.telemetry.trace_context import TraceContext
from filmgate.telemetry.tracing import Attribute, Span, error_type, exported_attributes
from filmgate.telemetry.untraced import NoSpan

_TRACES_PATH = "/v1/traces"
_NANOSECONDS = 10**9


class OtlpTracer:
    """Exports spans in batches on a background thread. Spans that do not fit its buffer are dropped."""

    is_on = True

    def __init__(self, settings: TraceSettings, service: str) -> None:
        self._timeout_seconds = settings.timeout_seconds
        self._ids, release = _Ids(), version("filmgate")
        resource = Resource.create({"service.name": f"filmgate-{service}", "service.version": release}).merge(
            OTELResourceDetector().detect()
        )  # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win
        ratio = TraceIdRatioBased(settings.ratio)
        self._provider = TracerProvider(
            # `start` rejects what the caller does not sample: here, "not sampled" means undecided.
            sampler=ParentBased(ratio, remote_parent_not_sampled=ratio),
            resource=resource,
            id_generator=self._ids,
            shutdown_on_exit=False,
        )
        endpoint = settings.endpoint.rstrip("/") + _TRACES_PATH
        exporter = OTLPSpanExporter(endpoint=endpoint, timeout=settings.timeout_seconds)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("filmgate", release)

    def start(
        self,
        name: str,
        parent: TraceContext,
        *,
        kind: str = "internal",
        at: float | None = None,
        links: tuple[TraceContext, ...] = (),
    ) -> Span:
        if parent.is_sampled is False:
            return NoSpan(parent)
        self._ids.root.set(int(parent.trace_id, 16))
        span = self._tracer.start_span(
            name,
            context=_to_context(parent),
            kind=SpanKind[kind.upper()],
            start_time=_to_nanoseconds(at),
            links=[Link(_to_span_context(link)) for link in links if link.span_id is not None],
        )
        # With OTEL_SDK_DISABLED, the SDK gives no ids.
        return OtlpSpan(span) if span.get_span_context().is_valid else NoSpan(parent)

    def close(self) -> None:
        self._provider.force_flush(int(self._timeout_seconds * 1000))
        self._provider.shutdown()


class OtlpSpan:
    """A span of the SDK."""

    __slots__ = ("_span", "context")

    def __init__(self, span: SdkSpan) -> None:
        self._span = span
        own = span.get_span_context()
        self.context = TraceContext(
            TraceId(f"{own.trace_id:032x}"), SpanId(f"{own.span_id:016x}"), own.trace_flags.sampled
        )

    def set(self, **attributes: Attribute) -> None:
        self._span.set_attributes(exported_attributes(attributes))

    def event(self, name: str, at: float, **attributes: Attribute) -> None:
        self._span.add_event(name, exported_attributes(attributes), _to_nanoseconds(at))

    def rename(self, name: str) -> None:
        self._span.update_name(name)

    def end(self, error: BaseException | None = None, at: float | None = None) -> None:
        if error is not None:
            self.set(error=error_type(error))
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end(_to_nanoseconds(at))


class _Ids(RandomIdGenerator):
    """Gives a root span the trace id that the request already has."""

    def __init__(self) -> None:
        self.root: ContextVar[int] = ContextVar("filmgate_root_trace")

    def generate_trace_id(self) -> int:
        return self.root.get()


def _to_context(parent: TraceContext) -> Context:
    # Never the SDK's own current span: libraries may set one.
    if parent.span_id is None:
        return Context()
    return set_span_in_context(NonRecordingSpan(_to_span_context(parent)), Context())


def _to_span_context(context: TraceContext) -> SpanContext:
    return SpanContext(
        trace_id=int(context.trace_id, 16),
        span_id=int(context.span_id or "0", 16),
        is_remote=True,
        trace_flags=TraceFlags(TraceFlags.SAMPLED if context.is_sampled else TraceFlags.DEFAULT),
    )


def _to_nanoseconds(at: float | None) -> int | None:
    return None if at is None else int(at * _NANOSECONDS)
