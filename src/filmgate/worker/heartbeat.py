"""The heartbeat of one lease: a thread that renews it, reports progress and receives cancellations."""

import threading
import time
from collections import deque

from filmgate.errors import Cancelled, LeaseLost, QueueUnavailable
from filmgate.jobs import Lease, Progress
from filmgate.scheduling.base import JobQueue
from filmgate.settings import WorkerSettings
from filmgate.telemetry.logs import Log

_MAX_PAUSE_SECONDS = 1.0  # after a heartbeat that failed


class Heartbeat:
    """Renews the lease until the job ends, upload included.

    Rendering never blocks on the database: progress goes to this thread. While the database is down no other
    worker can take the job, so the work goes on; the fence decides when the database is back.
    """

    def __init__(self, queue: JobQueue, lease: Lease, settings: WorkerSettings, log: Log) -> None:
        self._queue = queue
        self._lease = lease
        self._settings = settings
        self._log = log
        self._changed = threading.Condition()
        self._openings: deque[Progress] = deque()
        self._latest: Progress | None = None
        self._is_closed = False
        self._end: Exception | None = None
        self._valid_until = time.monotonic() + lease.seconds
        self._due_at = time.monotonic() + settings.heartbeat_seconds
        self._thread = threading.Thread(target=self._run, name=f"heartbeat-{lease.fence}", daemon=True)

    def start(self) -> None:
        """Start the thread; `close` ends it."""
        self._thread.start()

    def close(self) -> None:
        """Stop the heartbeats. The lease remains valid long enough to end the job."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    def report(self, progress: Progress) -> None:
        """Report finished work. The start of a stage is always written, steps within it may be skipped."""
        with self._changed:
            if progress.done == 0:
                self._openings.append(progress)
                self._latest = None
                self._changed.notify()
            else:
                self._latest = progress

    @property
    def is_valid(self) -> bool:
        """Whether the lease is known to be valid. In a database outage it may have expired."""
        return time.monotonic() < self._valid_until

    def stop_work(self, error: Exception) -> None:
        """Let `check` raise this error."""
        self._end = error

    def check(self) -> None:
        """Raises Cancelled or LeaseLost when the work must stop, or what `stop_work` was called with."""
        if self._end is not None:
            raise self._end

    def _run(self) -> None:
        try:
            while self._end is None and self._wait():
                self._send()
        except Exception as exc:  # noqa: BLE001 - the boundary of a thread: `check` raises it
            self._end = exc

    def _wait(self) -> bool:
        """Wait until progress or a plain heartbeat is due. False when closed."""
        progress_at = time.monotonic() + self._settings.progress_seconds
        with self._changed:
            while not self._is_closed:
                until = progress_at if self._latest is not None else self._due_at
                if self._openings or until <= time.monotonic():
                    return True
                self._changed.wait(min(until - time.monotonic(), self._settings.progress_seconds))
        return False

    def _send(self) -> None:
        with self._changed:
            progress = self._openings[0] if self._openings else self._latest
        sent_at = time.monotonic()
        try:
            reply = self._queue.heartbeat(self._lease, progress)
        except LeaseLost as exc:
            # Not logged here: a last heartbeat may also cross the end of a job that this worker completed.
            self._end = exc
            return
        except QueueUnavailable as exc:
            # Retried soon: the lease may end before the next one would be due.
            self._log.warning("a heartbeat was not sent", code=exc.code)
            time.sleep(min(self._settings.progress_seconds, _MAX_PAUSE_SECONDS))
            return
        self._valid_until = sent_at + self._lease.seconds
        self._due_at = time.monotonic() + self._settings.heartbeat_seconds
        with self._changed:
            if self._openings and progress is self._openings[0]:
                self._openings.popleft()
            elif progress is self._latest:
                self._latest = None
        if reply.is_cancelling:
            self._end = Cancelled("the video was cancelled")
