"""The current forecast, shared by all requests of a process and refreshed at most twice a second."""

import threading
import time
from collections.abc import Callable
from math import isinf

from filmgate.jobs import Job, JobState, TenantId
from filmgate.scheduling.base import JobReader
from filmgate.scheduling.forecast import Arrival, Forecast, forecast
from filmgate.scheduling.simulation import Slot
from filmgate.scheduling.snapshot_reader import busy_seconds, remaining_seconds, whole_seconds
from filmgate.scheduling.workers import TIMEOUT_SECONDS

FRESH_SECONDS = 0.5
# A forecast over a long queue takes longer: at most this share of the time goes into making it.
_MAX_DUTY = 0.1


class LiveForecast:
    """Answers when a job starts and ends. All methods block for a database read when a refresh is due.

    For TIMEOUT_SECONDS after the start, workers that have not announced themselves yet are expected to.
    """

    def __init__(self, reader: JobReader, clock: Callable[[], float] = time.monotonic) -> None:
        self._reader = reader
        self._clock = clock
        self._started_at = clock()
        self._lock = threading.Lock()
        self._current: Forecast | None = None
        self._expires_at = 0.0

    def get(self) -> Forecast:
        """The current forecast, at most FRESH_SECONDS old (older only where making one takes long)."""
        with self._lock:
            began = self._clock()
            if self._current is None or began >= self._expires_at:
                self._current = forecast(self._reader.snapshot(), expects_workers=self.expects_workers)
                took = self._clock() - began
                self._expires_at = began + max(FRESH_SECONDS, took / _MAX_DUTY)
            return self._current

    def expire(self) -> None:
        """Make the next reader read the queue again."""
        with self._lock:
            self._expires_at = 0.0

    def refresh(self) -> Forecast:
        """A forecast made now."""
        self.expire()
        return self.get()

    @property
    def expects_workers(self) -> bool:
        """Workers may be starting together with this process: it has not run long enough to know."""
        return self._clock() - self._started_at < TIMEOUT_SECONDS

    def has_lost_worker(self, job: Job) -> bool:
        """Whether a running job waits for another worker, because the lease of its own has ended."""
        return job.state is JobState.RUNNING and any(
            each.job_id == job.id and each.was_running and each.ready_in == 0
            for each in self.get().snapshot.queued
        )

    def slot(self, job: Job) -> Slot | None:
        """The slot of a job that waits for a worker, None for any other."""
        if job.state is not JobState.QUEUED and not self.has_lost_worker(job):
            return None
        current = self.get()
        if (slot := current.slots.get(job.id)) is not None:
            return slot
        # Enqueued after the snapshot, or beyond the jobs it lists: as if the job joined the queue now.
        return current.arrive(to_arrival(job.tenant_id, job))

    def eta_seconds(self, job: Job, now: float) -> float | None:
        """Seconds until the clip is ready. None when the job is final or no live worker serves it.

        A worker that is only expected promises nothing.
        """
        if job.state.is_final:
            return None
        provider_seconds = job.routing.expected_seconds
        whole = whole_seconds(job.route, job.predicted, provider_seconds)
        is_running = job.has_started and not self.has_lost_worker(job)
        if is_running and job.started_at is not None and job.progress is not None:
            return remaining_seconds(whole, now - job.started_at, job.progress.fraction)
        if (slot := self.slot(job)) is None:  # leased, not started yet
            return whole
        current = self.get()
        if current.count_workers(job.route, job.spec.model, job.tenant_id) == 0:
            return None
        age = max(now - current.snapshot.now, 0.0)
        not_busy = whole - busy_seconds(job.route, job.predicted, provider_seconds)
        ends_in = max(slot.ends_in - age, 0.0) + not_busy
        return None if isinf(ends_in) else ends_in


def to_arrival(tenant_id: TenantId, job: Job) -> Arrival:
    busy = busy_seconds(job.route, job.predicted, job.routing.expected_seconds)
    return Arrival(tenant_id, job.route, job.spec.model, busy, job.deadline_at)
