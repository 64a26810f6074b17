"""The heartbeat of one lease: a thread that keeps it, reports progress and hears that it should stop."""

import threading
import time
from collections import deque

from filmgate.errors import Cancelled, LeaseLost, QueueUnavailable
from filmgate.jobs import Lease, Progress
from filmgate.scheduling.base import JobQueue
from filmgate.settings import WorkerSettings
from filmgate.telemetry.logs import Log


class Lifeline:
    """Beats for as long as the job is worked on, upload included.

    The renderer only leaves its progress here; it never waits for the database. While the database is down
    nobody can take the job over, so the work goes on: the fence decides when it is back.
    """

    def __init__(self, queue: JobQueue, lease: Lease, settings: WorkerSettings, log: Log) -> None:
        self._queue = queue
        self._lease = lease
        self._settings = settings
        self._log = log
        self._news = threading.Condition()
        self._openings: deque[Progress] = deque()
        self._latest: Progress | None = None
        self._is_closed = False
        self._end: Exception | None = None
        self._sure_until = time.monotonic() + lease.seconds
        self._thread = threading.Thread(target=self._run, name=f"lifeline-{lease.fence}", daemon=True)

    def start(self) -> None:
        """Begin to beat; `close` ends it, on whichever thread the job ends."""
        self._thread.start()

    def close(self) -> None:
        """Stop beating; the lease lives on for its seconds, long enough to end it properly."""
        with self._news:
            self._is_closed = True
            self._news.notify()
        if self._thread.is_alive():
            self._thread.join()

    def report(self, progress: Progress) -> None:
        """Leave word of finished work; the opening of a stage is never skipped, steps inside one may be."""
        with self._news:
            if progress.done == 0:
                self._openings.append(progress)
                self._latest = None
                self._news.notify()
            else:
                self._latest = progress

    @property
    def is_sure(self) -> bool:
        """Whether the lease is known to be ours still. In an outage it is not: it may run out unrenewed."""
        return time.monotonic() < self._sure_until

    def check(self) -> None:
        """Raises Cancelled or LeaseLost when the work should stop."""
        if self._end is not None:
            raise self._end

    def _run(self) -> None:
        try:
            while self._end is None and self._wait():
                self._beat()
        except Exception as exc:  # noqa: BLE001 - a thread's edge: the renderer must hear of it
            self._end = exc

    def _wait(self) -> bool:
        """Sleep until something is due: progress often, a bare heartbeat rarely. False when closed."""
        due = time.monotonic() + self._settings.heartbeat_seconds
        soon = time.monotonic() + self._settings.progress_seconds
        with self._news:
            while not self._is_closed:
                until = soon if self._latest is not None else due
                if self._openings or until <= time.monotonic():
                    return True
                self._news.wait(min(until - time.monotonic(), self._settings.progress_seconds))
        return False

    def _beat(self) -> None:
        with self._news:
            progress = self._openings[0] if self._openings else self._latest
        asked_at = time.monotonic()
        try:
            standing = self._queue.heartbeat(self._lease, progress)
        except LeaseLost as exc:
            self._log.warning("lease lost")
            self._end = exc
            return
        except QueueUnavailable as exc:
            self._log.warning("heartbeat missed", code=exc.code)
            time.sleep(self._settings.progress_seconds)
            return
        self._sure_until = asked_at + self._lease.seconds
        with self._news:
            if self._openings and progress is self._openings[0]:
                self._openings.popleft()
            elif progress is self._latest:
                self._latest = None
        if standing.is_cancelling:
            self._end = Cancelled("the video was cancelled")
