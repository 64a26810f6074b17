"""The tracer that records nothing. The ids of the caller's trace still pass through."""

from filmgate.jobs import TraceId
from filmgate.telemetry.trace_context import TraceContext


class NoSpan:
    """Stands for a span where nothing is recorded."""

    __slots__ = ("context",)

    def __init__(self, context: TraceContext) -> None:
        self.context = context

    def set(self, **attributes: object) -> None:
        return

    def event(self, name: str, at: float, **attributes: object) -> None:
        return

    def rename(self, name: str) -> None:
        return

    def end(self, error: BaseException | None = None, at: float | None = None) -> None:
        return


class NoTracer:
    """A Tracer that is off."""

    is_on = False

    def start(
        self,
        name: str,
        parent: TraceContext,
        *,
        kind: str = "internal",
        at: float | None = None,
        links: tuple[TraceContext, ...] = (),
    ) -> NoSpan:
        return NoSpan(parent)

    def close(self) -> None:
        return


NO_TRACER = NoTracer()
NO_SPAN = NoSpan(TraceContext(TraceId("0" * 32), is_sampled=False))
