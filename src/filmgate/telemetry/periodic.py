"""Background tasks that repeat: one failure never ends the task, and one bad item never blocks the next."""

import threading
from collections.abc import Callable, Iterable
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

from prometheus_client import CollectorRegistry

from filmgate.telemetry.logs import Log
from filmgate.telemetry.metrics import TASK_FAILURES

T = TypeVar("T")
log = Log("periodic")

_STOP_SECONDS = 40.0


class FailureCounter:
    """Counts failed runs of background tasks."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._failures = TASK_FAILURES.live_counter(registry)

    def count(self, task: str) -> None:
        self._failures.labels(task).inc()


class Periodic:
    """Runs `action` on its own thread, at the start and then every `seconds`, until `stop`.

    Any exception is logged and counted; the next run follows as usual. Use it as a context manager.
    """

    def __init__(
        self,
        name: str,
        action: Callable[[], object],
        seconds: float,
        failures: FailureCounter | None = None,
    ) -> None:
        self._name = name
        self._action = action
        self._seconds = seconds
        self._failures = failures
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End after the current run."""
        self._is_stopping.set()
        self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        while not self._is_stopping.is_set():
            attempt(self._name, self._action, self._failures)
            self._is_stopping.wait(self._seconds)


def attempt(task: str, action: Callable[[], T], failures: FailureCounter | None = None) -> T | None:
    """The result of the action; None when it failed, which is logged and counted."""
    try:
        return action()
    except Exception as exc:  # noqa: BLE001 - the boundary of a background task
        log.error("a background task failed; it is retried", task=task, error=exc)  # noqa: TRY400
        if failures is not None:
            failures.count(task)
        return None


def attempt_each(
    task: str, action: Callable[[T], object], items: Iterable[T], failures: FailureCounter | None = None
) -> list[T]:
    """Run the action for every item; returns the items that failed. A failure does not stop the others."""

    def run(item: T) -> bool:
        action(item)
        return True

    return [item for item in items if not attempt(task, partial(run, item), failures)]
