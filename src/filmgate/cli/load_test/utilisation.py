"""How busy the GPU is, sampled through NVML from another process than the worker's."""

import threading
import time
from collections.abc import Sequence
from statistics import fmean
from types import TracebackType
from typing import Any, Self

_SAMPLE_SECONDS = 0.1


class UtilisationSampler:
    """Samples (Unix time, share of the time in which a kernel ran) of the first GPU; none without NVML."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self.samples: list[tuple[float, float]] = []
        self._thread = threading.Thread(target=self._sample, name="utilisation", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        import pynvml

        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return  # no NVIDIA driver: nothing to sample
        try:
            handle: Any = pynvml.nvmlDeviceGetHandleByIndex(0)
            while not self._stop.wait(_SAMPLE_SECONDS):
                self.samples.append((time.time(), pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100))
        finally:
            pynvml.nvmlShutdown()


def busy_share(samples: Sequence[tuple[float, float]], ends: Sequence[float]) -> float | None:
    """The mean while the queue was full: from the first completed clip to the last but one.

    Before it the device waits for the first request, after it for the last clip to be stored.
    """
    if len(ends) < 3:
        return None
    first, *_, last, _ = sorted(ends)
    shares = [share for at, share in samples if first <= at <= last]
    return fmean(shares) if shares else None
