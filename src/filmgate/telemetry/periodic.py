"""Background tasks that repeat: one failure never ends the task, and one bad item never blocks the next."""

import threading
from collections.abc import Callable, Iterable
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

from filmgate.telemetry.logs import Log
from filmgate.telemetry.metrics import TASK_FAILURE_COUNTER

T = TypeVar("T")
log = Log("periodic")

_STOP_SECONDS = 40.0


class Periodic:
    """Runs `action` on its own thread, at the start and then every `seconds`, until `stop`.

    Any exception is logged and counted; the next run follows as usual.
    """

    def __init__(self, name: str, action: Callable[[], object], seconds: float) -> None:
        self._name = name
        self._action = action
        self._seconds = seconds
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End after the current run."""
        self._is_stopping.set()
        self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        while not self._is_stopping.is_set():
            attempt(self._name, self._action)
            self._is_stopping.wait(self._seconds)


def attempt(task: str, action: Callable[[], T]) -> T | None:
    """Return the result of the action, or None if it failed, which is logged and counted.

    `task` is from a closed set: it becomes a label.
    """
    try:
        return action()
    except Exception as exc:  # noqa: BLE001 - the boundary of a background task
        log.error("a background task failed", task=task, error=exc)  # noqa: TRY400
        TASK_FAILURE_COUNTER.labels(task).inc()
        return None


def attempt_each(task: str, action: Callable[[T], object], items: Iterable[T]) -> list[T]:
    """Run the action for every item; returns the items that failed. A failure does not stop the others."""

    def run(item: T) -> bool:
        action(item)
        return True

    return [item for item in items if not attempt(task, partial(run, item))]
