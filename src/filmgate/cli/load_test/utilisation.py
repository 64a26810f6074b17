"""How busy the GPU is, sampled through NVML from another process than the worker's."""

import threading
from statistics import fmean
from types import TracebackType
from typing import Any, Self

_SAMPLE_SECONDS = 0.1


class UtilisationSampler:
    """The share of time in which a kernel ran on the first GPU; None where there is no NVIDIA GPU."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._samples: list[float] = []
        self._thread = threading.Thread(target=self._sample, name="utilisation", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def mean(self) -> float | None:
        return fmean(self._samples) if self._samples else None

    def _sample(self) -> None:
        import pynvml

        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return  # no NVIDIA driver: nothing to sample
        try:
            handle: Any = pynvml.nvmlDeviceGetHandleByIndex(0)
            while not self._stop.wait(_SAMPLE_SECONDS):
                self._samples.append(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100)
        finally:
            pynvml.nvmlShutdown()
