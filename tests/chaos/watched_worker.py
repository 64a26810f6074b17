"""The worker process of the tests of a broken GPU: the pattern runner, on the GPU of a stand-in for NVML."""

import ctypes
import sys
from contextlib import contextmanager

from filmgate.settings import load_settings
from filmgate.telemetry.gpu_metrics import GpuCollector
from filmgate.telemetry.nvml import find_gpu, opened_nvml
from filmgate.telemetry.periodic import Periodic
from filmgate.worker.gpu_watch import GpuWatch
from filmgate.worker.tracing import GpuReadings
from filmgate.worker_process import run_worker
from tests.nvml import UUID
from tests.pattern_runner import PatternRunner


class WatchedRunner:
    """The pattern runner, whose GPU is watched."""

    gpu = GpuReadings(UUID)
    speed = 1.0
    gpu_status = None

    def __init__(self):
        self._runner = PatternRunner()
        self.gpu_state = None

    def __getattr__(self, name):
        return getattr(self._runner, name)

    def recheck(self):
        return

    @contextmanager
    def watched(self, on_broken):
        with opened_nvml():
            watch = GpuWatch(find_gpu(UUID), on_broken)
            self.gpu_state = watch.state
            with Periodic("GPU watch", watch.check, 0.05):
                yield


def make_runner(_database, _metrics, registry):
    runner = WatchedRunner()
    registry.register(GpuCollector(lambda: runner.gpu_state))
    return runner


if __name__ == "__main__":
    ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
    run_worker(load_settings(), make_runner)
