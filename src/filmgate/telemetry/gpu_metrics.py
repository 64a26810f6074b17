"""Prometheus metrics of one GPU, under names that docs/metrics.md maps to DCGM's fields."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from filmgate.telemetry import metrics
from filmgate.telemetry.nvml import CLOCK_EVENTS, GpuSample

Labels = tuple[str, ...]

_SINGLE_VALUES = {
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
    "energy_joules": metrics.GPU_ENERGY,
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
        uuid, sample = state.uuid, state.sample
        yield _family(uuid, metrics.GPU_UP, {(): sample is not None})
        yield _family(uuid, metrics.GPU_HEALTHY, {(): state.is_healthy})
        xids: dict[Labels, float] = {(str(number),): count for number, count in sorted(state.xids.items())}
        yield _family(uuid, metrics.GPU_XID_ERRORS, xids)
        if sample is not None:
            yield from _describe(uuid, sample)


def _describe(uuid: str, sample: GpuSample) -> Iterator[Metric]:
    for field, metric in _SINGLE_VALUES.items():
        if (value := getattr(sample, field)) is not None:
            yield _family(uuid, metric, {(): value})
    events: dict[Labels, float] = {(reason,): reason in sample.clock_events for reason in CLOCK_EVENTS}
    yield _family(uuid, metrics.GPU_CLOCK_EVENT, events)
    yield _family(uuid, metrics.GPU_ECC_ERRORS, dict(sample.ecc_errors))
    rows = sample.rows
    remapped: dict[Labels, float] = {
        ("correctable",): rows.correctable,
        ("uncorrectable",): rows.uncorrectable,
    }
    yield _family(uuid, metrics.GPU_REMAPPED_ROWS, remapped)
    yield _family(uuid, metrics.GPU_REMAP_PENDING, {(): rows.is_pending})
    yield _family(uuid, metrics.GPU_REMAP_FAILURE, {(): rows.has_failed})


def _family(uuid: str, metric: metrics.Metric, values: Mapping[Labels, float]) -> Metric:
    """The values of a metric, by their labels after `gpu`."""
    family = metric.gauge() if metric.kind is metrics.Kind.GAUGE else metric.counter()
    for labels, value in values.items():
        family.add_metric([uuid, *labels], float(value))
    return family
