"""The trace that the current work belongs to, and its HTTP headers: W3C `traceparent` and AWS X-Ray.

Reading and sending the headers needs no OpenTelemetry: ids pass through even if no spans are exported.
"""

import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from filmgate.jobs import Job, SpanId, TraceId, new_trace_id

TRACEPARENT = "traceparent"
XRAY_HEADER = "x-amzn-trace-id"

# A later version of the header may have more fields; version ff is invalid.
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_XRAY_ROOT = re.compile(r"1-([0-9a-f]{8})-([0-9a-f]{24})")
_XRAY_PARENT = re.compile(r"[0-9a-f]{16}")
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16
_SAMPLED_FLAG = 1


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A place in a trace. `span_id` is the parent of the next span; None at the root.

    `is_sampled` says whether spans are exported; None leaves the decision to this process.
    """

    trace_id: TraceId
    span_id: SpanId | None = None
    is_sampled: bool | None = None


_current: ContextVar[TraceContext | None] = ContextVar("filmgate_trace", default=None)


def current_trace() -> TraceContext | None:
    """The trace of the running code; None outside of requests and jobs."""
    return _current.get()


def exported_span() -> SpanId | None:
    """The current span, to continue it in another process; None where no span is exported."""
    trace = current_trace()
    return trace.span_id if trace is not None and trace.is_sampled else None


@contextmanager
def within_trace(context: TraceContext) -> Iterator[None]:
    """Run the block as part of the trace. A thread that is started in the block does not inherit it."""
    token = _current.set(context)
    try:
        yield
    finally:
        _current.reset(token)


def trace_of(job: Job) -> TraceContext:
    """The context of a job's attempts: children of the span that accepted it."""
    return TraceContext(job.trace_id, job.span_id, job.span_id is not None)


def read_trace_headers(headers: Iterable[tuple[str, str]]) -> TraceContext:
    """The caller's trace, or a new one. `traceparent` wins over X-Ray's header; names may be in any case.

    A malformed header is ignored, as the specification requires.
    """
    given = {name.lower(): value.strip() for name, value in headers}
    found = _parse_traceparent(given.get(TRACEPARENT, "")) or _parse_xray(given.get(XRAY_HEADER, ""))
    return found or TraceContext(new_trace_id())


def trace_headers(context: TraceContext) -> dict[str, str]:
    """The headers that continue the trace in another service."""
    span_id = context.span_id or new_span_id()
    flag = int(bool(context.is_sampled))
    return {TRACEPARENT: f"00-{context.trace_id}-{span_id}-{flag:02x}", XRAY_HEADER: xray_header(context)}


def xray_header(context: TraceContext) -> str:
    """The value of X-Amzn-Trace-Id."""
    parts = [f"Root=1-{context.trace_id[:8]}-{context.trace_id[8:]}"]
    if context.span_id is not None:
        parts.append(f"Parent={context.span_id}")
    return ";".join([*parts, f"Sampled={int(bool(context.is_sampled))}"])


def new_span_id() -> SpanId:
    """A random span id."""
    return SpanId(secrets.token_hex(8))


def _parse_traceparent(value: str) -> TraceContext | None:
    match = _TRACEPARENT.fullmatch(value)
    if match is None or match[1] == _NO_TRACE or match[2] == _NO_SPAN:
        return None
    if value.startswith("00-") and len(value) != len("00-") + 32 + 1 + 16 + 1 + 2:
        return None
    return TraceContext(TraceId(match[1]), SpanId(match[2]), bool(int(match[3], 16) & _SAMPLED_FLAG))


def _parse_xray(value: str) -> TraceContext | None:
    """`Root=1-<8 hex>-<24 hex>;Parent=<16 hex>;Sampled=1`; a load balancer sends only the root."""
    fields = dict(part.strip().partition("=")[::2] for part in value.lower().split(";"))
    root = _XRAY_ROOT.fullmatch(fields.get("root", ""))
    if root is None or root[1] + root[2] == _NO_TRACE:
        return None
    parent = fields.get("parent", "")
    has_parent = _XRAY_PARENT.fullmatch(parent) is not None and parent != _NO_SPAN
    return TraceContext(
        TraceId(root[1] + root[2]),
        SpanId(parent) if has_parent else None,
        {"1": True, "0": False}.get(fields.get("sampled", "")),
    )
