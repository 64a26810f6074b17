"""NVIDIA GPUs through NVML: what they are, what they do now and what went wrong with them.

Import it only where the `worker` extra is installed.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pynvml

from filmgate.errors import DeviceLost

# Clock event bits that mean a slower GPU, by the names of the label `reason`.
CLOCK_EVENTS = {
    "power_cap": pynvml.nvmlClocksEventReasonSwPowerCap,
    "hw_slowdown": pynvml.nvmlClocksEventReasonHwSlowdown,
    "sw_thermal": pynvml.nvmlClocksEventReasonSwThermalSlowdown,
    "hw_thermal": pynvml.nvmlClocksEventReasonHwThermalSlowdown,
    "power_brake": pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown,
}
_LOST = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED)
_MEGAHERTZ, _MILLI = 1e6, 1e-3
_ANY_INSTANCE = 0xFFFFFFFF  # an XID event that belongs to the whole GPU
_ECC = {
    (kind, counter): (error, scope)
    for kind, error in (
        ("single_bit", pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        ("double_bit", pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
    )
    for counter, scope in (
        ("volatile", pynvml.NVML_VOLATILE_ECC),
        ("aggregate", pynvml.NVML_AGGREGATE_ECC),
    )
}


@dataclass(frozen=True, slots=True)
class RemappedRows:
    """Memory rows that the GPU has replaced by spare ones."""

    correctable: int = 0
    uncorrectable: int = 0
    is_pending: bool = False
    has_failed: bool = False


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One reading. None: this GPU does not report it."""

    utilization: float | None = None
    memory_copy_utilization: float | None = None
    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    memory_total_bytes: int | None = None
    temperature_celsius: float | None = None
    memory_temperature_celsius: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    energy_joules: float | None = None
    sm_clock_hertz: float | None = None
    sm_clock_max_hertz: float | None = None
    memory_clock_hertz: float | None = None
    clock_events: frozenset[str] = frozenset()
    ecc_errors: tuple[tuple[tuple[str, str], int], ...] = ()  # count by kind and counter
    rows: RemappedRows = RemappedRows()

    @property
    def double_bit_errors(self) -> int:
        """Uncorrectable errors since the driver was loaded or the GPU was reset."""
        return dict(self.ecc_errors).get(("double_bit", "volatile"), 0)


@dataclass(frozen=True, slots=True)
class GpuModel:
    """What a GPU is, and what its driver supports. `cuda_driver` is the newest CUDA version, as (12, 8)."""

    uuid: str
    name: str
    driver: str
    cuda_driver: tuple[int, int]
    capability: tuple[int, int]


class MigUtilization:
    """How busy a MIG device is. NVML has no rate for it, but GPUs from Hopper on count its cycles.

    A value is the mean between two readings.
    """

    def __init__(self, handle: Any, instance: int) -> None:
        """`handle` identifies the GPU."""
        self._handle = handle
        self._instance = instance
        self._last: Any = None

    def read(self) -> float | None:
        """The share since the reading before; None for the first one, and where the GPU does not count."""
        sample = _ask(pynvml.nvmlGpmSampleAlloc)
        if sample is None:
            return None
        if _ask(pynvml.nvmlGpmMigSampleGet, self._handle, self._instance, sample) is None:
            _ask(pynvml.nvmlGpmSampleFree, sample)
            return None
        before, self._last = self._last, sample
        if before is None:
            return None
        question = pynvml.c_nvmlGpmMetricsGet_t()
        question.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        question.numMetrics, question.sample1, question.sample2 = 1, before, sample
        metric = question.metrics[0]
        metric.metricId = pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL
        answer = _ask(pynvml.nvmlGpmMetricsGet, question)
        _ask(pynvml.nvmlGpmSampleFree, before)
        is_known = answer is not None and metric.nvmlReturn == pynvml.NVML_SUCCESS
        return min(float(metric.value) / 100, 1.0) if is_known else None


class Gpu:
    """One GPU, or a MIG device of one. Every method raises DeviceLost when the driver cannot reach it.

    A MIG device has its own UUID, memory, utilisation and XID events. Everything else, such as temperature,
    clocks and remapped rows, is that of its GPU.
    """

    def __init__(self, handle: Any, mig: Any = None) -> None:
        """`mig` is the handle of the MIG device."""
        self._handle = handle
        self._own = handle if mig is None else mig
        self._instance = None if mig is None else _ask(pynvml.nvmlDeviceGetGpuInstanceId, mig)
        self._mig_use = MigUtilization(handle, self._instance) if self._instance is not None else None
        self.uuid = _read_uuid(self._own)
        self._events = _open_events(handle)

    def describe(self) -> GpuModel:
        cuda = int(_ask(pynvml.nvmlSystemGetCudaDriverVersion_v2) or 0)
        return GpuModel(
            uuid=self.uuid,
            name=str(_ask(pynvml.nvmlDeviceGetName, self._handle) or ""),
            driver=str(_ask(pynvml.nvmlSystemGetDriverVersion) or ""),
            cuda_driver=(cuda // 1000, cuda % 1000 // 10),
            capability=_ask(pynvml.nvmlDeviceGetCudaComputeCapability, self._handle) or (0, 0),
        )

    def read(self) -> GpuSample:
        """Everything the GPU reports now. Takes a few milliseconds."""
        handle = self._handle
        use = _ask(pynvml.nvmlDeviceGetUtilizationRates, self._own)
        memory = _ask(pynvml.nvmlDeviceGetMemoryInfo, self._own)
        bits = _ask(pynvml.nvmlDeviceGetCurrentClocksEventReasons, handle) or 0
        counts = {key: self._count_ecc_errors(*which) for key, which in _ECC.items()}
        return GpuSample(
            utilization=use.gpu / 100 if use else self._read_mig_utilization(),
            memory_copy_utilization=use and use.memory / 100,
            memory_used_bytes=memory and memory.used,
            memory_free_bytes=memory and memory.free,
            memory_total_bytes=memory and memory.total,
            temperature_celsius=_ask(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
            memory_temperature_celsius=self._read_memory_temperature(),
            power_watts=_scaled(_MILLI, pynvml.nvmlDeviceGetPowerUsage, handle),
            power_limit_watts=_scaled(_MILLI, pynvml.nvmlDeviceGetEnforcedPowerLimit, handle),
            energy_joules=_scaled(_MILLI, pynvml.nvmlDeviceGetTotalEnergyConsumption, handle),
            sm_clock_hertz=_scaled(_MEGAHERTZ, pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM),
            sm_clock_max_hertz=_scaled(
                _MEGAHERTZ, pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_SM
            ),
            memory_clock_hertz=_scaled(
                _MEGAHERTZ, pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_MEM
            ),
            clock_events=frozenset(name for name, bit in CLOCK_EVENTS.items() if bits & bit),
            ecc_errors=tuple((key, count) for key, count in counts.items() if count is not None),
            rows=self._read_rows(),
        )

    def next_xid(self) -> int | None:
        """The number of the next unread XID event; None if there is no such event. Does not wait.

        Events of other MIG devices of the same GPU are left out.
        """
        while self._events is not None:
            event = _ask(pynvml.nvmlEventSetWait_v2, self._events, 0)
            if event is None:  # a timeout: no event
                return None
            if self._instance is None or event.gpuInstanceId in (self._instance, _ANY_INSTANCE):
                return int(event.eventData)
        return None

    def _count_ecc_errors(self, error: int, scope: int) -> int | None:
        """Some counters exist only for a MIG device, others only for its GPU: the larger value counts."""
        handles = [self._own] if self._own is self._handle else [self._own, self._handle]
        counts = [_ask(pynvml.nvmlDeviceGetTotalEccErrors, handle, error, scope) for handle in handles]
        return max((count for count in counts if count is not None), default=None)

    def _read_mig_utilization(self) -> float | None:
        return self._mig_use.read() if self._mig_use is not None else None

    def _read_rows(self) -> RemappedRows:
        rows = _ask(pynvml.nvmlDeviceGetRemappedRows, self._handle)
        if rows is None:
            return RemappedRows()
        correctable, uncorrectable, is_pending, has_failed = rows
        return RemappedRows(correctable, uncorrectable, bool(is_pending), bool(has_failed))

    def _read_memory_temperature(self) -> float | None:
        values = _ask(pynvml.nvmlDeviceGetFieldValues, self._handle, [pynvml.NVML_FI_DEV_MEMORY_TEMP])
        if not values or values[0].nvmlReturn != pynvml.NVML_SUCCESS:
            return None
        return float(values[0].value.uiVal)


@contextmanager
def opened_nvml() -> Iterator[bool]:
    """Use NVML in the block. Yields False on a machine without a usable NVIDIA driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield False
        return
    try:
        yield True
    finally:
        pynvml.nvmlShutdown()


def list_gpus() -> list[Gpu]:
    """The GPUs of this machine. Use it within `opened_nvml`."""
    return [Gpu(handle) for handle in _list_handles()]


def find_gpu(uuid: str) -> Gpu | None:
    """The GPU or MIG device with this UUID, with any or no prefix. Use it within `opened_nvml`."""
    wanted = _without_prefix(uuid)
    for handle in _list_handles():
        if _without_prefix(_read_uuid(handle)) == wanted:
            return Gpu(handle)
        for mig in _list_mig_handles(handle):
            if _without_prefix(_read_uuid(mig)) == wanted:
                return Gpu(handle, mig)
    return None


def _list_handles() -> list[Any]:
    count = int(_ask(pynvml.nvmlDeviceGetCount) or 0)
    handles = [_ask(pynvml.nvmlDeviceGetHandleByIndex, index) for index in range(count)]
    return [handle for handle in handles if handle is not None]


def _list_mig_handles(handle: Any) -> list[Any]:
    """The MIG devices of a GPU. Indexes may have gaps."""
    count = int(_ask(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0)
    handles = [_ask(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index) for index in range(count)]
    return [handle for handle in handles if handle is not None]


def _read_uuid(handle: Any) -> str:
    return str(_ask(pynvml.nvmlDeviceGetUUID, handle) or "")


def _without_prefix(uuid: str) -> str:
    """torch gives the UUID of a MIG device without the prefix that NVML writes."""
    return uuid.lower().removeprefix("gpu-").removeprefix("mig-")


def _ask(function: Callable[..., Any], *arguments: Any) -> Any:
    """The answer of NVML; None if this GPU or driver does not support the query."""
    try:
        return function(*arguments)
    except pynvml.NVMLError as exc:
        if exc.value in _LOST:
            raise DeviceLost(f"NVML: {exc}") from exc
        return None


def _scaled(factor: float, function: Callable[..., Any], *arguments: Any) -> float | None:
    value = _ask(function, *arguments)
    return None if value is None else value * factor


def _open_events(handle: Any) -> Any:
    """An event set for XID events; None where the driver has none."""
    events = _ask(pynvml.nvmlEventSetCreate)
    if events is None:
        return None
    try:
        pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
    except pynvml.NVMLError:
        return None
    return events
