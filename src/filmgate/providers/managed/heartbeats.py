"""The heartbeats of all provider jobs of a process, on one thread."""

import threading
import time
from dataclasses import dataclass

from filmgate.errors import Cancelled, LeaseLost, QueueUnavailable
from filmgate.jobs import Progress, Stage
from filmgate.providers.managed.provider_job import ProviderJob
from filmgate.scheduling.base import JobQueue
from filmgate.settings import WorkerSettings
from filmgate.telemetry.logs import Log
from filmgate.telemetry.periodic import Periodic, attempt_each

log = Log("worker")


@dataclass(slots=True)
class _Schedule:
    """When the next heartbeat is due, and the stage that the last one reported."""

    due_at: float
    stage: Stage | None = None


class Heartbeats:
    """Renews the leases of all jobs in turn, with one write per job that is not flushed to disk.

    A failed heartbeat is retried and does not stop the heartbeats of other jobs. No other worker can lease
    the jobs while the database is down; after an outage the fence decides.
    """

    def __init__(self, queue: JobQueue, settings: WorkerSettings) -> None:
        self._queue = queue
        self._settings = settings
        self._lock = threading.Lock()
        self._schedules: dict[ProviderJob, _Schedule] = {}
        self._task = Periodic("managed-heartbeats", self.run, settings.progress_seconds)

    def start(self) -> None:
        self._task.start()

    def stop(self) -> None:
        self._task.stop()

    def add(self, job: ProviderJob) -> None:
        with self._lock:
            self._schedules[job] = _Schedule(self._next_due())

    def remove(self, job: ProviderJob) -> None:
        with self._lock:
            self._schedules.pop(job, None)

    def run(self) -> None:
        """Send a heartbeat for each job for which one is due, or which entered a stage."""
        with self._lock:
            schedules = list(self._schedules.items())
        attempt_each("managed-heartbeats", self._beat, schedules)

    def _beat(self, entry: tuple[ProviderJob, _Schedule]) -> None:
        job, schedule = entry
        opening = job.opening()
        has_opened = opening is not None and opening.stage is not schedule.stage
        if not has_opened and schedule.due_at > time.monotonic():
            return
        try:
            self._send(job, opening if has_opened else job.progress())
        except QueueUnavailable as exc:
            log.warning("a heartbeat was not sent", code=exc.code, job_id=job.lease.job.id)
            return
        schedule.stage = opening.stage if opening is not None else None
        schedule.due_at = self._next_due()

    def _next_due(self) -> float:
        return time.monotonic() + self._settings.heartbeat_seconds

    def _send(self, job: ProviderJob, progress: Progress | None) -> None:
        try:
            reply = self._queue.heartbeat(job.lease, progress)
        except LeaseLost as exc:
            job.stop(exc)
            return
        if reply.is_cancelling:
            job.stop(Cancelled("the video was cancelled"))
