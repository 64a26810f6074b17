"""One heart for all errands of a process: it keeps every lease and hears which should stop."""

import threading
import time

from filmgate.errors import Cancelled, LeaseLost, QueueUnavailable
from filmgate.jobs import Progress
from filmgate.queue.base import JobQueue
from filmgate.settings import WorkerSettings
from filmgate.telemetry.logs import Log
from filmgate.worker.managed.errand import Errand

log = Log("worker")


class Pulse:
    """Beats for each errand in turn, on one thread: a beat is one unflushed write, whatever the number.

    While the database is down nobody can take the jobs over; the fence decides when it is back.
    """

    def __init__(self, queue: JobQueue, settings: WorkerSettings) -> None:
        self._queue = queue
        self._settings = settings
        self._lock = threading.Lock()
        self._due: dict[Errand, float] = {}
        self._opened: dict[Errand, object] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="managed-pulse", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()

    def add(self, errand: Errand) -> None:
        with self._lock:
            self._due[errand] = time.monotonic() + self._settings.heartbeat_seconds

    def drop(self, errand: Errand) -> None:
        with self._lock:
            self._due.pop(errand, None)
            self._opened.pop(errand, None)

    def _run(self) -> None:
        while not self._is_over.wait(self._settings.progress_seconds):
            try:
                self.beat()
            except QueueUnavailable as exc:
                log.warning("heartbeats missed", code=exc.code)

    def beat(self) -> None:
        """A heartbeat for every errand that is due or has opened a stage. Raises QueueUnavailable."""
        now = time.monotonic()
        with self._lock:
            errands = [errand for errand, due in self._due.items() if due <= now or self._has_news(errand)]
        for errand in errands:
            self._beat_once(errand)
            with self._lock:
                if errand in self._due:
                    self._due[errand] = time.monotonic() + self._settings.heartbeat_seconds

    def _has_news(self, errand: Errand) -> bool:
        opening = errand.opening()
        return opening is not None and self._opened.get(errand) is not opening.stage

    def _beat_once(self, errand: Errand) -> None:
        progress = self._news(errand)
        try:
            standing = self._queue.heartbeat(errand.lease, progress)
        except LeaseLost as exc:
            errand.stop(exc)
            return
        if progress is not None:
            self._opened[errand] = progress.stage
        if standing.is_cancelling:
            errand.stop(Cancelled("the video was cancelled"))

    def _news(self, errand: Errand) -> Progress | None:
        return errand.opening() if self._has_news(errand) else errand.progress()
