"""How busy the GPU is, sampled through NVML from another process than the worker's."""

import threading
import time
from collections.abc import Sequence
from statistics import fmean
from types import TracebackType
from typing import Self

from filmgate.errors import DeviceLost
from filmgate.telemetry.nvml import find_gpu, opened_nvml

_SAMPLE_SECONDS = 0.1


class UtilizationSampler:
    """Samples (Unix time, share of the time in which a kernel ran) of one GPU or MIG device.

    There are none without NVML, and none for an empty UUID.
    """

    def __init__(self, gpu_uuid: str) -> None:
        self._gpu_uuid = gpu_uuid
        self._stop = threading.Event()
        self.samples: list[tuple[float, float]] = []
        self._thread = threading.Thread(target=self._sample, name="utilization", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        if not self._gpu_uuid:
            return
        with opened_nvml() as is_usable:
            gpu = find_gpu(self._gpu_uuid) if is_usable else None
            while gpu is not None and not self._stop.wait(_SAMPLE_SECONDS):
                try:
                    share = gpu.read().utilization
                except DeviceLost:
                    return  # the requests of the test fail and say so
                if share is not None:
                    self.samples.append((time.time(), share))


def busy_share(samples: Sequence[tuple[float, float]], ends: Sequence[float]) -> float | None:
    """The mean while the queue was full: from the first completed clip to the last but one.

    Before it the device waits for the first request, after it for the last clip to be stored.
    """
    if len(ends) < 3:
        return None
    first, *_, last, _ = sorted(ends)
    shares = [share for at, share in samples if first <= at <= last]
    return fmean(shares) if shares else None
