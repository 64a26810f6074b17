"""Instruments: kernel utilisation and copied bytes from the profiler, peak host memory from a sampler."""

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

TURN_MICROSECONDS = 20.0
KERNELS_LISTED = 20


@dataclass(frozen=True, slots=True)
class KernelTime:
    """What one kernel took in all its launches."""

    name: str
    milliseconds: float
    launches: int


@dataclass(frozen=True, slots=True)
class GpuUse:
    """Union of kernel intervals over the span from first to last, and bytes copied to the host.

    `waiting` is the share of the span in pauses longer than the turn from one kernel to the next: what the
    device spent waiting for the host. Of several rounds the middle one is shown, beside what each came to.
    """

    kernel_utilisation: float
    bytes_to_host: int
    waiting: float = 0.0
    kernels: tuple[KernelTime, ...] = ()
    all_utilisations: tuple[float, ...] = ()


def profile_gpu(run: Callable[[], object], rounds: int = 1) -> GpuUse:
    """Run twice a round under the profiler and read the device's own record of the second run.

    The first launches after the profiler starts take longer on the host; they are not the program's.
    """
    uses: list[GpuUse] = []
    from torch.profiler import ProfilerActivity, profile, schedule

    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"

        def read(profiler: profile) -> None:
            profiler.export_chrome_trace(str(trace))
            uses.append(read_trace(json.loads(trace.read_text())["traceEvents"]))
            gc.collect()  # now, not in the middle of the next round: it walks all that torch loaded

        rhythm = schedule(wait=0, warmup=1, active=1, repeat=rounds)
        with (
            warnings.catch_warnings(),
            profile(activities=[ProfilerActivity.CUDA], schedule=rhythm, on_trace_ready=read) as profiler,
        ):
            warnings.filterwarnings("ignore", message=".*Profiler clears events")  # they are read by then
            for _ in range(2 * rounds):
                run()
                torch.cuda.synchronize()
                profiler.step()
    return middle(uses)


def middle(uses: Sequence[GpuUse]) -> GpuUse:
    """The round of median utilisation, and what every round came to."""
    ordered = sorted(uses, key=lambda use: use.kernel_utilisation)
    return replace(
        ordered[(len(ordered) - 1) // 2], all_utilisations=tuple(use.kernel_utilisation for use in uses)
    )


def read_trace(events: Iterable[Mapping[str, Any]]) -> GpuUse:
    """What the device did, from the profiler's events. Clearing memory is work; copies run beside it."""
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
    waiting = pause_share(work, TURN_MICROSECONDS)
    return GpuUse(busy_share(work), copied, waiting, tuple(kernels[:KERNELS_LISTED]))


def busy_share(intervals: Iterable[tuple[float, float]]) -> float:
    """Length of the union of the intervals over the span they cover."""
    ordered = sorted(intervals)
    return 1 - pause_share(ordered) if ordered else 0.0


def pause_share(intervals: Iterable[tuple[float, float]], over: float = 0.0) -> float:
    """The share of the span that lies in pauses longer than `over`."""
    ordered = sorted(intervals)
    if not ordered:
        return 0.0
    paused, stop = 0.0, ordered[0][1]
    for next_start, next_stop in ordered[1:]:
        if next_start - stop > over:
            paused += next_start - stop
        stop = max(stop, next_stop)
    return paused / (stop - ordered[0][0])


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
