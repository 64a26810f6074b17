"""Watches the GPU of a worker through NVML and stops the worker when the GPU reports a hardware error."""

import socket
import time
from collections.abc import Callable

from filmgate.errors import DeviceBroken, DeviceLost
from filmgate.scheduling.workers import GpuStatus
from filmgate.telemetry.gpu_metrics import GpuState
from filmgate.telemetry.logs import Log
from filmgate.telemetry.nvml import Gpu, GpuSample
from filmgate.worker.tracing import GpuReadings

log = Log("gpu")

# After these XID events the results cannot be trusted. Other events are counted and logged.
FATAL_XIDS = {
    48: "double_bit_error",
    64: "row_remap_failure",
    79: "device_lost",
    94: "double_bit_error",  # contained: only this process is affected
    95: "double_bit_error",  # uncontained
    119: "device_lost",  # the GPU's system processor does not answer
    120: "device_lost",
}
_MIN_SPEED = 0.1
THERMAL_EVENTS = frozenset({"sw_thermal", "hw_thermal", "hw_slowdown", "power_brake"})


class GpuWatch:
    """Reads the GPU at intervals. `on_broken` is called once, on the thread that reads."""

    def __init__(
        self, gpu: Gpu, on_broken: Callable[[DeviceBroken], None], readings: GpuReadings | None = None
    ) -> None:
        self._gpu = gpu
        self._readings = readings or GpuReadings(gpu.uuid)
        self._on_broken = on_broken
        self._is_broken = False
        self._was_slow = False
        self._clean_until = time.monotonic()
        self.state = GpuState(gpu.uuid)

    def require_healthy(self) -> None:
        """Before the first lease. Raises DeviceBroken for errors from before this process started."""
        if (fault := self._read()) is not None:
            raise self._to_error(fault)

    def check(self) -> None:
        """Read the GPU once."""
        started = time.monotonic()
        fault = self._read()
        if fault is None:
            self._clean_until = started
        elif not self._is_broken:
            self._is_broken = True
            self._on_broken(self._to_error(fault))

    @property
    def speed(self) -> float:
        """Current over highest clock while heat or power slows the GPU, 1 otherwise."""
        sample = self.state.sample
        if sample is None or not sample.clock_events & THERMAL_EVENTS:
            return 1.0
        if not sample.sm_clock_hertz or not sample.sm_clock_max_hertz:
            return 1.0
        return min(max(sample.sm_clock_hertz / sample.sm_clock_max_hertz, _MIN_SPEED), 1.0)

    @property
    def status(self) -> GpuStatus:
        """What operators see of the GPU."""
        sample = self.state.sample
        if sample is None:
            return GpuStatus(self.state.is_healthy)
        return GpuStatus(
            self.state.is_healthy,
            sample.temperature_celsius,
            sample.memory_used_bytes,
            sample.memory_total_bytes,
        )

    def _read(self) -> str | None:
        """The fault of the GPU; None if it can be trusted."""
        try:
            sample = self.state.sample = self._gpu.read()
            xid_fault = self._read_xids()
        except DeviceLost:
            self.state.sample = None
            return "device_lost"
        self._readings.add(sample, time.time())
        self._note_slowdown(sample)
        return find_fault(sample) or xid_fault

    def _read_xids(self) -> str | None:
        fault = None
        while (xid := self._gpu.next_xid()) is not None:
            self.state.xids[xid] += 1
            log.warning("the driver reported an XID event", gpu=self._gpu.uuid, xid=xid)
            fault = fault or FATAL_XIDS.get(xid)
        return fault

    def _note_slowdown(self, sample: GpuSample) -> None:
        is_slow = bool(sample.clock_events & THERMAL_EVENTS)
        if is_slow is not self._was_slow:
            message = "heat or power slows the GPU" if is_slow else "the GPU is at full speed again"
            log.warning(message, gpu=self._gpu.uuid, reason=",".join(sorted(sample.clock_events)))
        self._was_slow = is_slow

    def _to_error(self, fault: str) -> DeviceBroken:
        self.state.is_healthy = False
        node = socket.gethostname()
        log.error("the GPU cannot be trusted; replace it", node=node, gpu=self._gpu.uuid, reason=fault)
        return DeviceBroken(
            f"GPU {self._gpu.uuid} of node {node} cannot be trusted ({fault}); drain the node and replace it",
            fault=fault,
            clean_until=self._clean_until,
        )


def find_fault(sample: GpuSample) -> str | None:
    """Why a GPU with this reading must not render; None if it may."""
    if sample.double_bit_errors > 0:
        return "double_bit_error"
    return "row_remap_failure" if sample.rows.has_failed else None
