"""Metrics of one worker process: its device, its models, its attempts and its canary."""

import time
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from filmgate.jobs import Reason
from filmgate.scheduling.device_history import DeviceSeconds
from filmgate.scheduling.metrics import version_label
from filmgate.telemetry import metrics
from filmgate.telemetry.periodic import FailureCounter

# Gaps between clips: from the time of a kernel launch to a model that is loaded in between.
_GAP_BOUNDS = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
Clock = Callable[[], float]


class DeviceMeter(Collector):
    """How long the device had a job and how long it had none. Idle time starts with the first lease loop."""

    def __init__(self, registry: CollectorRegistry, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._busy_since: float | None = None
        self._idle_since: float | None = None
        self._has_waited = True
        self._busy_seconds = 0.0
        self._idle_seconds = 0.0
        self._gap_seconds = 0.0
        self._gaps = 0
        self._gap = metrics.WORKER_GAP_SECONDS.live_histogram(registry, _GAP_BOUNDS)
        registry.register(self)

    def start(self) -> None:
        """The worker can take jobs from now on."""
        self._idle_since = self._clock()

    def take(self) -> None:
        """A job takes the device."""
        now = self._clock()
        if self._idle_since is not None:
            self._idle_seconds += now - self._idle_since
            if not self._has_waited:
                self._gap.observe(now - self._idle_since)
                self._gap_seconds += now - self._idle_since
                self._gaps += 1
        self._idle_since, self._busy_since = None, now

    def leave(self) -> None:
        """The job has left the device."""
        now = self._clock()
        if self._busy_since is not None:
            self._busy_seconds += now - self._busy_since
        self._idle_since, self._busy_since, self._has_waited = now, None, False

    def wait(self) -> None:
        """No job was waiting: the idle time that follows is not a gap between clips."""
        self._has_waited = True

    def read(self) -> DeviceSeconds:
        """The seconds until now."""
        now, busy_since, idle_since = self._clock(), self._busy_since, self._idle_since
        return DeviceSeconds(
            busy=self._busy_seconds + (now - busy_since if busy_since is not None else 0.0),
            idle=self._idle_seconds + (now - idle_since if idle_since is not None else 0.0),
            gap=self._gap_seconds,
            gaps=self._gaps,
        )

    def describe(self) -> Iterator[Metric]:
        yield metrics.WORKER_BUSY.gauge()

    def collect(self) -> Iterator[Metric]:
        seconds = self.read()
        busy = metrics.WORKER_BUSY.gauge()
        busy.add_metric([], float(self._busy_since is not None))
        yield busy
        for metric, total in (
            (metrics.WORKER_BUSY_SECONDS, seconds.busy),
            (metrics.WORKER_IDLE_SECONDS, seconds.idle),
        ):
            family = metric.counter()
            family.add_metric([], total)
            yield family


class WorkerMetrics:
    """What a worker counts. `on_load` also receives every model load, for the database."""

    def __init__(
        self,
        registry: CollectorRegistry,
        on_load: Callable[[str, str, float], None] = lambda _model, _version, _seconds: None,
    ) -> None:
        self._on_load = on_load
        self.device = DeviceMeter(registry)
        self.failures = FailureCounter(registry)
        self._info = metrics.WORKER_INFO.live_gauge(registry)
        self._start = metrics.WORKER_START_SECONDS.live_gauge(registry)
        self._loaded = metrics.MODEL_LOADED.live_gauge(registry)
        self._failed = metrics.ATTEMPTS_FAILED.live_counter(registry)
        self._out_of_memory = metrics.OUT_OF_MEMORY.live_counter(registry)
        self._steps = metrics.LADDER_STEPS.live_counter(registry)
        self._canaries = metrics.CANARY_RUNS.live_counter(registry)
        self._difference = metrics.CANARY_DIFFERENCE.live_gauge(registry)
        self._passed_at = metrics.CANARY_PASSED_AT.live_gauge(registry)

    def identify(self, worker: str, route: str, device: str, gpu: str) -> None:
        self._info.labels(worker, route, device, gpu).set(1)

    def ready(self, seconds: float) -> None:
        """The worker can lease its first job, this long after the process started."""
        self._start.set(seconds)

    def loaded(self, model: str, version: str, seconds: float) -> None:
        self._loaded.labels(model, version_label(version)).set(1)
        self._on_load(model, version, seconds)

    def unloaded(self, model: str, version: str) -> None:
        self._loaded.labels(model, version_label(version)).set(0)

    def attempt_failed(self, model: str, version: str, reason: Reason) -> None:
        self._failed.labels(model, version_label(version), reason.value).inc()
        if reason is Reason.OUT_OF_MEMORY:
            self._out_of_memory.labels(model).inc()

    def stepped_down(self, model: str, rung: str) -> None:
        """Memory ran out, and decoding goes on with this rung of the memory ladder."""
        self._out_of_memory.labels(model).inc()
        self._steps.labels(model, rung).inc()

    def canary_checked(self, model: str, difference: float | None, *, has_passed: bool) -> None:
        """A canary was compared; None if it came to no comparison."""
        self._canaries.labels(model, "passed" if has_passed else "failed").inc()
        if difference is not None:
            self._difference.labels(model).set(difference)
        if has_passed:
            self._passed_at.labels(model).set_to_current_time()
