"""NVIDIA GPUs through NVML: what they are, what they do now and what went wrong with them.

Import it only where the `worker` extra is installed.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pynvml

from filmgate.errors import DeviceError

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


class DeviceLost(DeviceError):  # noqa: N818
    """The driver cannot reach the GPU any more."""


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


class Gpu:
    """One GPU. Every method raises DeviceLost when the driver cannot reach it any more."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self.uuid = str(_ask(pynvml.nvmlDeviceGetUUID, handle) or "")
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
        use = _ask(pynvml.nvmlDeviceGetUtilizationRates, handle)
        memory = _ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
        bits = _ask(pynvml.nvmlDeviceGetCurrentClocksEventReasons, handle) or 0
        counts = {
            key: _ask(pynvml.nvmlDeviceGetTotalEccErrors, handle, *which) for key, which in _ECC.items()
        }
        return GpuSample(
            utilization=use and use.gpu / 100,
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
        """The number of the next XID event that nobody has read yet; None if there is none. Does not wait."""
        if self._events is None:
            return None
        try:
            return int(pynvml.nvmlEventSetWait_v2(self._events, 0).eventData)
        except pynvml.NVMLError as exc:
            if exc.value in _LOST:
                raise DeviceLost(f"NVML: {exc}") from exc
            return None  # a timeout: no event

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
    count = int(_ask(pynvml.nvmlDeviceGetCount) or 0)
    handles = (_ask(pynvml.nvmlDeviceGetHandleByIndex, index) for index in range(count))
    return [Gpu(handle) for handle in handles if handle is not None]


def find_gpu(uuid: str) -> Gpu | None:
    """The GPU with this UUID, with or without the prefix `GPU-`. Use it within `opened_nvml`."""
    wanted = uuid.removeprefix("GPU-").lower()
    return next((gpu for gpu in list_gpus() if gpu.uuid.removeprefix("GPU-").lower() == wanted), None)


def _ask(function: Callable[..., Any], *arguments: Any) -> Any:
    """The answer of NVML; None if this GPU or driver does not support the question."""
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
