"""Instruments: kernel utilisation and copied bytes from the profiler, peak host memory from a sampler."""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch


@dataclass(frozen=True, slots=True)
class GpuUse:
    """Union of kernel intervals over the span from first to last, and bytes copied to the host."""

    kernel_utilisation: float
    bytes_to_host: int


def profile_gpu(run: Callable[[], object]) -> GpuUse:
    """Run once under the profiler and read the device's own record of it."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run()
        torch.cuda.synchronize()
    kernels: list[tuple[int, int]] = []
    copied = 0
    for event in profiler.profiler.kineto_results.events():
        if event.device_type().name != "CUDA":
            continue
        if event.name().startswith("Memcpy DtoH"):
            copied += event.nbytes()
        elif not event.name().startswith(("Memcpy", "Memset")):
            kernels.append((event.start_ns(), event.start_ns() + event.duration_ns()))
    return GpuUse(busy_share(kernels), copied)


def busy_share(intervals: Iterable[tuple[int, int]]) -> float:
    """Length of the union of the intervals over the span they cover."""
    ordered = sorted(intervals)
    if not ordered:
        return 0.0
    busy, (start, stop) = 0, ordered[0]
    for next_start, next_stop in ordered[1:]:
        if next_start > stop:
            busy += stop - start
            start, stop = next_start, next_stop
        else:
            stop = max(stop, next_stop)
    busy += stop - start
    return busy / (stop - ordered[0][0])


class HostMemory:
    """Samples this process's resident memory while a block runs; `peak_bytes` afterwards."""

    INTERVAL_SECONDS = 0.01

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="filmgate-memory", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        is_over = False
        while not is_over:  # once more at the end: a run may be shorter than the interval
            is_over = self._stop.wait(self.INTERVAL_SECONDS)
            self.peak_bytes = max(self.peak_bytes, resident_bytes())


def resident_bytes() -> int:
    """Resident memory of this process."""
    import resource

    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()
