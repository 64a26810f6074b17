"""Kernel utilisation and copied bytes from the profiler; peak host memory from a sampling thread."""

import gc
import json
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch

MAX_KERNEL_GAP_MICROSECONDS = 20.0  # between two kernels that were queued in time
KERNELS_LISTED = 20


@dataclass(frozen=True, slots=True)
class KernelTime:
    """The total time of one kernel over all its launches."""

    name: str
    milliseconds: float
    launches: int


@dataclass(frozen=True, slots=True)
class GpuUse:
    """How busy the GPU was from its first kernel to its last, and the bytes copied to the host.

    `kernel_utilisation` is the share of the time in which a kernel runs. `waiting` is the share in which the
    GPU waits for the host: pauses longer than MAX_KERNEL_GAP_MICROSECONDS. With several rounds the figures
    come from the median round, and `all_utilisations` lists every round.
    """

    kernel_utilisation: float
    bytes_to_host: int
    waiting: float = 0.0
    kernels: tuple[KernelTime, ...] = ()
    all_utilisations: tuple[float, ...] = ()


def profile_gpu(run: Callable[[], object], rounds: int = 1) -> GpuUse:
    """Run twice per round under the profiler and read the trace of the second run.

    The first launches after the profiler starts are slower on the host, so the first run is a warm-up.
    """
    uses: list[GpuUse] = []
    from torch.profiler import ProfilerActivity, profile, schedule

    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"

        def read(profiler: profile) -> None:
            profiler.export_chrome_trace(str(trace))
            uses.append(read_trace(json.loads(trace.read_text())["traceEvents"]))
            gc.collect()  # here rather than during the next round: a full collection takes a while

        steps = schedule(wait=0, warmup=1, active=1, repeat=rounds)
        with (
            warnings.catch_warnings(),
            profile(activities=[ProfilerActivity.CUDA], schedule=steps, on_trace_ready=read) as profiler,
        ):
            warnings.filterwarnings("ignore", message=".*Profiler clears events")  # they have been read
            for _ in range(2 * rounds):
                run()
                torch.cuda.synchronize()
                profiler.step()
    return median_round(uses)


def median_round(uses: Sequence[GpuUse]) -> GpuUse:
    """The round with the median utilisation, with the utilisations of all rounds."""
    ordered = sorted(uses, key=lambda use: use.kernel_utilisation)
    return replace(
        ordered[(len(ordered) - 1) // 2], all_utilisations=tuple(use.kernel_utilisation for use in uses)
    )


def read_trace(events: Iterable[Mapping[str, Any]]) -> GpuUse:
    """GPU use from the profiler's events. Clearing memory counts as work, copies do not."""
    work: list[tuple[float, float]] = []
    spent: dict[str, list[float]] = {}
    copied = 0
    for event in events:
        if event.get("cat") in ("kernel", "gpu_memset"):
            work.append((event["ts"], event["ts"] + event["dur"]))
            spent.setdefault(event["name"], []).append(event["dur"])
        elif event.get("cat") == "gpu_memcpy" and event["name"].startswith("Memcpy DtoH"):
            copied += int(event["args"]["bytes"])
    kernels = sorted(
        (KernelTime(name, sum(times) / 1000, len(times)) for name, times in spent.items()),
        key=lambda kernel: -kernel.milliseconds,
    )
    waiting = pause_share(work, MAX_KERNEL_GAP_MICROSECONDS)
    return GpuUse(busy_share(work), copied, waiting, tuple(kernels[:KERNELS_LISTED]))


def busy_share(intervals: Iterable[tuple[float, float]]) -> float:
    """The share of the time between the first start and the last stop that some interval covers."""
    ordered = sorted(intervals)
    return 1 - pause_share(ordered) if ordered else 0.0


def pause_share(intervals: Iterable[tuple[float, float]], longer_than: float = 0.0) -> float:
    """The share of the time between the first start and the last stop that is in longer pauses."""
    ordered = sorted(intervals)
    if not ordered:
        return 0.0
    paused, stop = 0.0, ordered[0][1]
    for next_start, next_stop in ordered[1:]:
        if next_start - stop > longer_than:
            paused += next_start - stop
        stop = max(stop, next_stop)
    return paused / (stop - ordered[0][0])


class HostMemory:
    """Samples the resident memory of this process while a `with` block runs; `peak_bytes` is the maximum."""

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
        while not is_over:  # and once at the end: a run may be shorter than the interval
            is_over = self._stop.wait(self.INTERVAL_SECONDS)
            self.peak_bytes = max(self.peak_bytes, resident_bytes())


def resident_bytes() -> int:
    """The resident memory of this process."""
    import resource

    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()
