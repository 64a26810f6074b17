"""How busy the GPU is, sampled through NVML from another process than the worker's."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean

from filmgate.errors import DeviceLost
from filmgate.telemetry.nvml import find_gpu, opened_nvml

_SAMPLE_SECONDS = 0.1


Samples = list[tuple[float, float]]
"""Unix times, and the share of the time in which a kernel ran."""


@contextmanager
def sampled_utilization(gpu_uuid: str) -> Iterator[Samples]:
    """Sample one GPU or MIG device until the block ends. There are no samples without NVML or a UUID."""
    samples: Samples = []
    stop = threading.Event()
    thread = threading.Thread(target=_sample, args=(gpu_uuid, samples, stop), name="utilization", daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        stop.set()
        thread.join()


def _sample(gpu_uuid: str, samples: Samples, stop: threading.Event) -> None:
    if not gpu_uuid:
        return
    with opened_nvml() as is_usable:
        gpu = find_gpu(gpu_uuid) if is_usable else None
        while gpu is not None and not stop.wait(_SAMPLE_SECONDS):
            try:
                share = gpu.read().utilization
            except DeviceLost:
                return  # the requests of the test fail and say so
            if share is not None:
                samples.append((time.time(), share))


def busy_share(samples: Sequence[tuple[float, float]], ends: Sequence[float]) -> float | None:
    """The mean while the queue was full: from the first completed clip to the last but one.

    Before it the device waits for the first request, after it for the last clip to be stored.
    """
    if len(ends) < 3:
        return None
    first, *_, last, _ = sorted(ends)
    shares = [share for at, share in samples if first <= at <= last]
    return fmean(shares) if shares else None
