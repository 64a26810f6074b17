"""The health of one worker process, as /readyz of its management port reports it."""

from collections.abc import Callable
from enum import StrEnum
from functools import partial

from prometheus_client import CollectorRegistry

from filmgate.telemetry.metrics import WORKER_READY
from filmgate.telemetry.readiness import OK, Readiness, is_ready
from filmgate.worker.metrics import WorkerMetrics


class Part(StrEnum):
    """What must be well before a worker leases jobs."""

    MODEL = "model"
    CANARY = "canary"
    GPU = "gpu"
    PROVIDER = "provider"
    LEASES = "leases"


GPU_PARTS = (Part.MODEL, Part.CANARY, Part.GPU, Part.LEASES)
MANAGED_PARTS = (Part.PROVIDER, Part.LEASES)
STARTING = "starting"
DRAINING = "draining"


class WorkerHealth:
    """`ok` or a short reason for each part. `on_ready` is called once, when the worker can lease jobs."""

    def __init__(
        self, parts: tuple[Part, ...] = GPU_PARTS, on_ready: Callable[[], None] = lambda: None
    ) -> None:
        self._parts = dict.fromkeys(parts, STARTING)
        self._on_ready = [on_ready]

    def mark(self, part: Part, answer: str) -> None:
        """Set the answer of one part. Safe in a signal handler."""
        self._parts[part] = answer

    def mark_ready(self) -> None:
        """All parts that were starting are well."""
        for part, answer in self._parts.items():
            if answer == STARTING:
                self._parts[part] = OK
        for callback in self._on_ready:
            callback()

    def on_ready(self, callback: Callable[[], None]) -> None:
        """Also call this when the worker can lease jobs."""
        self._on_ready.append(callback)

    def mark_draining(self) -> None:
        """The worker leases nothing more. Safe in a signal handler."""
        self._parts[Part.LEASES] = DRAINING

    def readiness(self) -> Readiness:
        """The checks of /readyz."""
        return Readiness({part.value: partial(self._parts.__getitem__, part) for part in self._parts})

    def export(self, registry: CollectorRegistry) -> None:
        """Export whether the worker is ready."""
        WORKER_READY.live_gauge(registry).set_function(lambda: float(is_ready(self.readiness().read())))


class WorkerTelemetry:
    """The health and the metrics of one worker."""

    def __init__(self, health: WorkerHealth | None = None, metrics: WorkerMetrics | None = None) -> None:
        self.health = health or WorkerHealth()
        self.metrics = metrics or WorkerMetrics(CollectorRegistry())
