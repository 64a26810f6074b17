"""Metrics of one worker process: its models, its attempts and its canary."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry

from filmgate.jobs import Reason
from filmgate.scheduling.metrics import version_label
from filmgate.telemetry import metrics
from filmgate.worker.turns import DeviceMeter


class WorkerMetrics:
    """What a worker counts. `on_load` also receives every model load, for the database."""

    def __init__(
        self,
        registry: CollectorRegistry,
        on_load: Callable[[str, str, float], None] = lambda _model, _version, _seconds: None,
    ) -> None:
        self._on_load = on_load
        self.device = DeviceMeter(registry)
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
        """A canary was checked. `difference` is None if it could not be compared."""
        self._canaries.labels(model, "passed" if has_passed else "failed").inc()
        if difference is not None:
            self._difference.labels(model).set(difference)
        if has_passed:
            self._passed_at.labels(model).set_to_current_time()
