"""Streams and events: one implementation for CUDA and a synchronous one for the CPU, used by the same loops.

A mark is a point in the work of a stream. Each handover of a buffer records a mark and waits for it.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import Tensor


class Mark(Protocol):
    """A point in the work of a stream."""

    def wait_on_host(self) -> None:
        """Block this thread until the work before the mark is done. Other streams continue."""
        ...

    def seconds_since(self, origin: Mark) -> float:
        """Return the time from `origin` to this mark. The work before both must be done."""
        ...


class Streams(Protocol):
    """The compute stream, which decodes, and the copy stream, which copies frames to the host."""

    def on_compute(self) -> AbstractContextManager[object]:
        """Issue the work inside the block to the compute stream, on any thread."""
        ...

    def mark_compute(self) -> Mark: ...
    def mark_copy(self) -> Mark: ...
    def compute_waits_for(self, mark: Mark) -> None: ...
    def copy(self, source: Tensor, target: Tensor, after: Mark) -> tuple[Mark, Mark]:
        """Copy to the host on the copy stream after `after`. Returns the marks before and after the copy."""
        ...

    def host_buffer(self, count: int) -> Tensor:
        """Allocate `count` bytes of host memory; page-locked on CUDA, for full copy speed."""
        ...

    def device_buffer(self, count: int) -> Tensor: ...
    def drain(self) -> None:
        """Block until both streams are idle and every buffer can be freed or reused."""
        ...


def open_streams(device: torch.device) -> Streams:
    """Return CudaStreams on CUDA, SyncStreams on other devices."""
    return CudaStreams(device) if device.type == "cuda" else SyncStreams()


class CudaMark:
    """A CUDA event. A waiting thread sleeps and leaves its core to the encoder."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.event = torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]
        self.event.record(stream)

    def wait_on_host(self) -> None:
        self.event.synchronize()

    def seconds_since(self, origin: Mark) -> float:
        assert isinstance(origin, CudaMark)
        return float(origin.event.elapsed_time(self.event)) / 1000


class CudaStreams:
    """Decodes on the current stream of the caller, copies on a new one."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._compute = torch.cuda.current_stream(device)
        self._copy = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def on_compute(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._compute)

    def mark_compute(self) -> Mark:
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

    def host_buffer(self, count: int) -> Tensor:
        return torch.empty(count, dtype=torch.uint8, pin_memory=True)

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
    """Streams for the CPU: the work of a call is done when it returns."""

    def on_compute(self) -> AbstractContextManager[object]:
        return nullcontext()

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

    def host_buffer(self, count: int) -> Tensor:
        return torch.empty(count, dtype=torch.uint8)

    def device_buffer(self, count: int) -> Tensor:
        return torch.empty(count, dtype=torch.uint8)

    def drain(self) -> None:
        return
