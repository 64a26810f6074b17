"""When each part of the pipeline was busy: spans on lanes, from the host clock and from marks in streams."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from filmgate.pipeline.transfer.streams import Mark, Streams

LANES = ("decode", "copy", "encode", "write")


@dataclass(frozen=True, slots=True)
class Span:
    """A lane was busy from `start` to `stop`, in seconds since the recording began."""

    lane: str
    start: float
    stop: float


class Timeline:
    """Records spans. It reads marks only at the end, so recording never waits for the GPU."""

    def __init__(self, streams: Streams) -> None:
        streams.drain()  # gives the host clock and the stream clock the same origin
        self._origin_mark = streams.mark_compute()
        self._origin_host = time.perf_counter()
        self._host: list[Span] = []
        self._marked: list[tuple[str, Mark, Mark]] = []

    def between(self, lane: str, before: Mark, after: Mark) -> None:
        self._marked.append((lane, before, after))

    @contextmanager
    def on_host(self, lane: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            origin = self._origin_host
            self._host.append(Span(lane, start - origin, time.perf_counter() - origin))

    def spans(self) -> list[Span]:
        """Return all spans in order of start. The streams must be drained."""
        origin = self._origin_mark
        marked = [Span(lane, a.seconds_since(origin), b.seconds_since(origin)) for lane, a, b in self._marked]
        return sorted(self._host + marked, key=lambda span: span.start)


class NoTimeline:
    """Records nothing. Used outside benchmarks."""

    def between(self, *_: object) -> None:
        return

    def on_host(self, _: str) -> AbstractContextManager[None]:
        return nullcontext()


AnyTimeline = Timeline | NoTimeline
