"""One heart for all errands of a process: it keeps every lease and hears which should stop."""

import threading
import time
from dataclasses import dataclass

from filmgate.errors import Cancelled, LeaseLost, QueueUnavailable
from filmgate.jobs import Progress, Stage
from filmgate.providers.managed.provider_job import Errand
from filmgate.scheduling.base import JobQueue
from filmgate.settings import WorkerSettings
from filmgate.telemetry.logs import Log


@dataclass(slots=True)
class _Rhythm:
    """When the next heartbeat is due, and the stage the last one told of."""

    due_at: float
    stage: Stage | None = None


class Pulse:
    """Beats for each errand in turn, on one thread: a beat is one unflushed write, whatever the number.

    While the database is down nobody can take the jobs over; the fence decides when it is back.
    """

    def __init__(self, queue: JobQueue, settings: WorkerSettings) -> None:
        self._queue = queue
        self._settings = settings
        self._log = Log("worker")
        self._lock = threading.Lock()
        self._rhythms: dict[Errand, _Rhythm] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="managed-pulse", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()

    def add(self, errand: Errand) -> None:
        with self._lock:
            self._rhythms[errand] = _Rhythm(self._next_beat())

    def drop(self, errand: Errand) -> None:
        with self._lock:
            self._rhythms.pop(errand, None)

    def _run(self) -> None:
        while not self._is_over.wait(self._settings.progress_seconds):
            try:
                self.beat()
            except QueueUnavailable as exc:
                self._log.warning("heartbeats missed", code=exc.code)
            except Exception as exc:  # noqa: BLE001 - a thread's edge: every lease depends on it
                self._log.error("a heartbeat failed", error=exc)

    def beat(self) -> None:
        """A heartbeat for every errand that is due or has opened a stage. Raises QueueUnavailable."""
        now = time.monotonic()
        with self._lock:
            rhythms = list(self._rhythms.items())
        for errand, rhythm in rhythms:
            opening = errand.opening()
            has_opened = opening is not None and opening.stage is not rhythm.stage
            if has_opened or rhythm.due_at <= now:
                self._beat_once(errand, opening if has_opened else errand.progress())
                rhythm.stage = opening.stage if opening is not None else None
                rhythm.due_at = self._next_beat()

    def _next_beat(self) -> float:
        return time.monotonic() + self._settings.heartbeat_seconds

    def _beat_once(self, errand: Errand, progress: Progress | None) -> None:
        try:
            standing = self._queue.heartbeat(errand.lease, progress)
        except LeaseLost as exc:
            errand.stop(exc)
            return
        if standing.is_cancelling:
            errand.stop(Cancelled("the video was cancelled"))
