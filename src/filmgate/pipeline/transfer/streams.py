"""Streams and events: one implementation for CUDA and a synchronous one for the CPU, used by the same loops.

A mark is a point in the work of a stream. Each handover of a buffer records a mark and waits for it.

A timeline is made of marks: when each part of the pipeline was busy, as spans on lanes.
"""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import Protocol

import torch
from torch import Tensor

LANES = ("decode", "copy", "encode", "write")


class Mark(Protocol):
    """A point in the work of a stream."""

    def wait_on_host(self) -> None:
        """Block this thread until the work before the mark is done. Other streams continue."""
        ...

    def seconds_since(self, origin: "Mark") -> float:
        """Return the time from `origin` to this mark. The work before both must be done."""
        ...


class Streams(Protocol):
    """The compute stream, which decodes, and the copy stream, which copies frames to the host."""

    def on_compute(self) -> AbstractContextManager[object]:
        """Issue the work inside the block to the compute stream, on any thread."""
        ...

    def beside_compute(self) -> AbstractContextManager[object]:
        """Issue the work inside the block to a separate stream, until `join_compute`.

        A host that waits for this work does not wait for what the compute stream still has to do. Work on
        the compute stream that uses its tensors must be queued before the block ends.
        """
        ...

    def join_compute(self) -> None:
        """Issue the rest of this thread's work to the compute stream, behind its separate stream."""
        ...

    def mark_current(self) -> Mark:
        """Mark the stream that this thread issues its work to."""
        ...

    def mark_compute(self) -> Mark: ...
    def mark_copy(self) -> Mark: ...
    def compute_waits_for(self, mark: Mark) -> None: ...
    def copy(self, source: Tensor, target: Tensor, after: Mark) -> tuple[Mark, Mark]:
        """Copy to the host on the copy stream after `after`. Returns the marks before and after the copy."""
        ...

    def host_buffer(self, count: int) -> Tensor:
        """Allocate `count` bytes of host memory; page-locked on CUDA, for full copy speed.

        All threads may write to a buffer, also if the caller is in torch's inference mode.
        """
        ...

    def device_buffer(self, count: int) -> Tensor: ...
    def drain(self) -> None:
        """Block until both streams are idle and every buffer can be freed or reused."""
        ...


def open_streams(device: torch.device, role: str = "copy frames") -> Streams:
    """Return CudaStreams on CUDA, SyncStreams on other devices. `role` names the copy stream."""
    return CudaStreams(device, role) if device.type == "cuda" else SyncStreams(device)


def named_stream(device: torch.device, role: str) -> torch.cuda.Stream:
    """The stream for this role on this device, the same at every call.

    torch has 32 streams per device and assigns them round-robin. Two users of one stream would wait for each
    other, and one could get memory that is free only for the work of the other.
    """
    return _named_stream(device.index if device.index is not None else torch.cuda.current_device(), role)


@cache
def _named_stream(device_index: int, _role: str) -> torch.cuda.Stream:
    return torch.cuda.Stream(device_index)  # type: ignore[no-untyped-call]


class CudaMark:
    """A CUDA event. A waiting thread sleeps and leaves its core to the encoder."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.event = torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]
        self.event.record(stream)

    @property
    def is_done(self) -> bool:
        return bool(self.event.query())  # type: ignore[no-untyped-call]

    def wait_on_host(self) -> None:
        self.event.synchronize()

    def seconds_since(self, origin: Mark) -> float:
        assert isinstance(origin, CudaMark)
        return float(origin.event.elapsed_time(self.event)) / 1000


class FreeStreams:
    """The streams of one device that prepare clips. A stream in use is taken out.

    A stream keeps the memory that was freed on it. It may use that memory again only when the compute stream
    has done everything that was queued with it, which the mark says.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._free: list[tuple[torch.cuda.Stream, CudaMark]] = []
        self._count = 0
        self._lock = Lock()

    def take(self) -> torch.cuda.Stream:
        with self._lock:
            for entry in self._free:
                stream, last_use = entry
                if last_use.is_done:
                    self._free.remove(entry)
                    return stream
            self._count += 1
            return named_stream(self._device, f"prepare {self._count}")

    def give_back(self, stream: torch.cuda.Stream, last_use: CudaMark) -> None:
        with self._lock:
            self._free.append((stream, last_use))


@cache
def free_streams(device: torch.device) -> FreeStreams:
    """One list per device, for all models on it."""
    return FreeStreams(device)


class CudaStreams:
    """Decodes on the current stream of the caller, copies on another one."""

    def __init__(self, device: torch.device, role: str = "copy frames") -> None:
        self._device = device
        self._compute = torch.cuda.current_stream(device)
        self._copy = named_stream(device, role)
        self._opened = self.mark_compute()

    def on_compute(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._compute)

    @contextmanager
    def beside_compute(self) -> Iterator[None]:
        streams = free_streams(self._compute.device)
        stream = streams.take()
        stream.wait_event(self._opened.event)  # the weights are on the device
        try:
            with torch.cuda.stream(stream):
                yield
        finally:
            streams.give_back(stream, self.mark_compute())

    def join_compute(self) -> None:
        self._compute.wait_stream(torch.cuda.current_stream(self._device))
        torch.cuda.set_stream(self._compute)

    def mark_current(self) -> Mark:
        return CudaMark(torch.cuda.current_stream(self._device))

    def mark_compute(self) -> CudaMark:
        return CudaMark(self._compute)

    def mark_copy(self) -> Mark:
        return CudaMark(self._copy)

    def compute_waits_for(self, mark: Mark) -> None:
        assert isinstance(mark, CudaMark)
        self._compute.wait_event(mark.event)

    def copy(self, source: Tensor, target: Tensor, after: Mark) -> tuple[Mark, Mark]:
        assert isinstance(after, CudaMark)
        self._copy.wait_event(after.event)
        before = self.mark_copy()
        with torch.cuda.stream(self._copy):
            target.copy_(source, non_blocking=True)
        return before, self.mark_copy()

    @torch.inference_mode(mode=False)
    def host_buffer(self, count: int) -> Tensor:
        return torch.empty(count, dtype=torch.uint8, device="cpu", pin_memory=True)

    @torch.inference_mode(mode=False)
    def device_buffer(self, count: int) -> Tensor:
        return torch.empty(count, dtype=torch.uint8, device=self._device)

    def drain(self) -> None:
        self._compute.synchronize()
        self._copy.synchronize()


class SyncMark:
    """A moment in time: synchronous work is done when its call returns."""

    def __init__(self) -> None:
        self.moment = time.perf_counter()

    def wait_on_host(self) -> None:
        return

    def seconds_since(self, origin: Mark) -> float:
        assert isinstance(origin, SyncMark)
        return self.moment - origin.moment


class SyncStreams:
    """Streams for the CPU: the work of a call is done when it returns. On MPS, a copy to the host waits."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def on_compute(self) -> AbstractContextManager[object]:
        return nullcontext()

    def beside_compute(self) -> AbstractContextManager[object]:
        return nullcontext()

    def join_compute(self) -> None:
        return

    def mark_current(self) -> Mark:
        return SyncMark()

    def mark_compute(self) -> Mark:
        return SyncMark()

    def mark_copy(self) -> Mark:
        return SyncMark()

    def compute_waits_for(self, mark: Mark) -> None:
        mark.wait_on_host()

    def copy(self, source: Tensor, target: Tensor, after: Mark) -> tuple[Mark, Mark]:
        after.wait_on_host()
        before = SyncMark()
        target.copy_(source)
        return before, SyncMark()

    @torch.inference_mode(mode=False)
    def host_buffer(self, count: int) -> Tensor:
        return torch.empty(count, dtype=torch.uint8, device="cpu")

    @torch.inference_mode(mode=False)
    def device_buffer(self, count: int) -> Tensor:
        return torch.empty(count, dtype=torch.uint8, device=self._device)

    def drain(self) -> None:
        return


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
