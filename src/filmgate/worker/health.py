"""The health of one worker process, as /readyz of its management port reports it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial

from prometheus_client import CollectorRegistry

from filmgate.telemetry.metrics import WORKER_READY
from filmgate.telemetry.readiness import OK, Readiness, is_ready
from filmgate.worker.metrics import WorkerMetrics
from filmgate.worker.tracing import WorkerTracing


class Part(StrEnum):
    """What must be healthy before a worker leases jobs."""

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
    """`ok` or a short reason for each part."""

    def __init__(self, parts: tuple[Part, ...] = GPU_PARTS) -> None:
        self._parts = dict.fromkeys(parts, STARTING)
        self._on_ready: list[Callable[[], None]] = []

    def mark(self, part: Part, answer: str) -> None:
        """Set the answer of one part. Safe in a signal handler."""
        self._parts[part] = answer

    def mark_ready(self) -> None:
        """All parts that were starting are healthy."""
        for part, answer in self._parts.items():
            if answer == STARTING:
                self._parts[part] = OK
        for callback in self._on_ready:
            callback()

    def on_ready(self, callback: Callable[[], None]) -> None:
        """Call this once, when the worker can lease jobs."""
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


@dataclass(frozen=True, slots=True)
class WorkerTelemetry:
    """The health, the metrics and the traces of one worker."""

    health: WorkerHealth = field(default_factory=WorkerHealth)
    metrics: WorkerMetrics = field(default_factory=lambda: WorkerMetrics(CollectorRegistry()))
    tracing: WorkerTracing = field(default_factory=WorkerTracing)
