"""Prometheus metrics of one GPU, under names that docs/metrics.md maps to DCGM's fields."""

from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from filmgate.telemetry import metrics
from filmgate.telemetry.nvml import CLOCK_EVENTS, GpuSample

_GAUGES = {
    "utilization": metrics.GPU_UTILIZATION,
    "memory_copy_utilization": metrics.GPU_MEMORY_COPY_UTILIZATION,
    "memory_used_bytes": metrics.GPU_MEMORY_USED,
    "memory_free_bytes": metrics.GPU_MEMORY_FREE,
    "memory_total_bytes": metrics.GPU_MEMORY_TOTAL,
    "temperature_celsius": metrics.GPU_TEMPERATURE,
    "memory_temperature_celsius": metrics.GPU_MEMORY_TEMPERATURE,
    "power_watts": metrics.GPU_POWER,
    "power_limit_watts": metrics.GPU_POWER_LIMIT,
    "sm_clock_hertz": metrics.GPU_SM_CLOCK,
    "sm_clock_max_hertz": metrics.GPU_SM_CLOCK_MAX,
    "memory_clock_hertz": metrics.GPU_MEMORY_CLOCK,
}


class GpuState:
    """The last reading of a GPU, whether it is healthy, and the XID events since the start."""

    def __init__(self, uuid: str) -> None:
        self.uuid = uuid
        self.sample: GpuSample | None = None  # None: not read yet, or lost
        self.is_healthy = True
        self.xids: Counter[int] = Counter()


class GpuCollector(Collector):
    """Exports the state of a GPU at each scrape, without asking the GPU."""

    def __init__(self, read_state: Callable[[], GpuState | None]) -> None:
        self._read_state = read_state

    def describe(self) -> Iterator[Metric]:
        yield metrics.GPU_UP.gauge()

    def collect(self) -> Iterator[Metric]:
        if (state := self._read_state()) is None:
            return
        sample = state.sample
        for metric, value in ((metrics.GPU_UP, sample is not None), (metrics.GPU_HEALTHY, state.is_healthy)):
            family = metric.gauge()
            family.add_metric([state.uuid], float(value))
            yield family
        xids = metrics.GPU_XID_ERRORS.counter()
        for number, count in sorted(state.xids.items()):
            xids.add_metric([state.uuid, str(number)], count)
        yield xids
        if sample is not None:
            yield from _describe(state.uuid, sample)


def _describe(uuid: str, sample: GpuSample) -> Iterator[Metric]:
    for field, metric in _GAUGES.items():
        if (value := getattr(sample, field)) is not None:
            family = metric.gauge()
            family.add_metric([uuid], value)
            yield family
    if sample.energy_joules is not None:
        energy = metrics.GPU_ENERGY.counter()
        energy.add_metric([uuid], sample.energy_joules)
        yield energy
    events = metrics.GPU_CLOCK_EVENT.gauge()
    for reason in CLOCK_EVENTS:
        events.add_metric([uuid, reason], float(reason in sample.clock_events))
    yield events
    errors = metrics.GPU_ECC_ERRORS.counter()
    for (kind, counter), count in sample.ecc_errors:
        errors.add_metric([uuid, kind, counter], count)
    yield errors
    yield from _describe_rows(uuid, sample)


def _describe_rows(uuid: str, sample: GpuSample) -> Iterator[Metric]:
    rows = metrics.GPU_REMAPPED_ROWS.gauge()
    rows.add_metric([uuid, "correctable"], sample.rows.correctable)
    rows.add_metric([uuid, "uncorrectable"], sample.rows.uncorrectable)
    yield rows
    pending, failed = metrics.GPU_REMAP_PENDING.gauge(), metrics.GPU_REMAP_FAILURE.gauge()
    pending.add_metric([uuid], float(sample.rows.is_pending))
    failed.add_metric([uuid], float(sample.rows.has_failed))
    yield pending
    yield failed
