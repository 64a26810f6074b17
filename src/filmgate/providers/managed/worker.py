"""The managed worker leases jobs, starts them at the provider and polls them from a few threads."""

import heapq
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count

from filmgate.errors import KeyringUnavailable, ProviderError, ProviderUnusable, QueueUnavailable
from filmgate.jobs import Lease
from filmgate.providers.managed.heartbeats import Heartbeats
from filmgate.providers.managed.orphans import OrphanSweep
from filmgate.providers.managed.provider_job import ManagedServices, ProviderJob
from filmgate.scheduling.base import JobQueue, Offer
from filmgate.scheduling.workers import WorkerStatus
from filmgate.settings import WorkerSettings
from filmgate.telemetry.logs import Log
from filmgate.telemetry.periodic import attempt
from filmgate.worker.failures import Drained
from filmgate.worker.health import MANAGED_PARTS, WorkerHealth

_MAX_SLEEP_SECONDS = 0.2
_LEASES_PER_TURN = 16
_SWEEP_SECONDS = 60.0


class ManagedWorker:
    """Hundreds of provider jobs in one process."""

    def __init__(
        self,
        offer: Offer,
        queue: JobQueue,
        services: ManagedServices,
        settings: WorkerSettings,
        poll_seconds: float,
        health: WorkerHealth | None = None,
    ) -> None:
        self._health = health or WorkerHealth(MANAGED_PARTS)
        self._queue = queue
        self._services = services
        self._settings = settings
        self._poll_seconds = poll_seconds
        self._offer = offer
        self._log = Log("worker", worker_id=offer.worker_id)
        self._heartbeats = Heartbeats(queue, settings)
        self._pool = ThreadPoolExecutor(services.settings.threads, thread_name_prefix="managed")
        self._orphans = OrphanSweep(services.provider, services.invocations)
        self._sweep_at = 0.0
        self._lease_at = 0.0
        self._has_failed_to_lease = False
        # Guards the two collections below; notified when a job is due earlier than expected.
        self._changed = threading.Condition()
        self._jobs: set[ProviderJob] = set()
        self._waiting: list[tuple[float, int, ProviderJob]] = []
        self._numbers = count()
        # Not an Event: a signal handler must not take its lock.
        self._is_draining = False
        self._drain_ends = float("inf")
        self._capacity = services.settings.max_jobs
        self.is_ready = False

    @property
    def status(self) -> WorkerStatus:
        """What the worker announces in the worker table."""
        offer = self._offer
        return WorkerStatus(
            offer.worker_id,
            offer.route,
            offer.models,
            offer.device or "",
            self._capacity,
            offer.tenants,
            is_draining=self._is_draining,
        )

    def serve(self, models: tuple[str, ...]) -> None:
        """Lease jobs of these models from now on."""
        self._offer = replace(self._offer, models=models)

    def drain(self) -> None:
        """Stop leasing, finish running steps and hand the other jobs back. Safe in a signal handler.

        A second call never extends the first.
        """
        self._drain_ends = min(self._drain_ends, time.monotonic() + self._settings.drain_seconds)
        self._services.publisher.drain(self._drain_ends)
        self._is_draining = True
        self._health.mark_draining()

    def run(self) -> None:
        """Work until drained. Raises ProviderUnusable when the provider cannot be used as configured."""
        self._capacity = self._read_capacity()
        self.is_ready = True
        self._health.mark_ready()
        self._log.info("ready", device=self._offer.device, jobs=self._capacity)
        self._heartbeats.start()
        try:
            while not self._is_draining:
                self._lease_some()
                self._dispatch()
                self._sweep()
                self._sleep()
            self._hand_back()
        finally:
            self._pool.shutdown(wait=True)
            self._heartbeats.stop()
        self._log.info("drained")

    def _read_capacity(self) -> int:
        """At most what the provider renders at the same time; other jobs stay in the queue."""
        limit = self._services.settings.max_jobs
        try:
            models = self._services.provider.models()
        except ProviderUnusable:
            raise
        except ProviderError as exc:
            # The provider may be down for a moment. Jobs that it already renders must still be polled.
            self._log.warning("the provider does not answer yet", code=exc.code)
            return limit
        limits = [limit if model.max_concurrent is None else model.max_concurrent for model in models]
        return min(limit, max(limits, default=limit))

    def _lease_some(self) -> None:
        if time.monotonic() < self._lease_at:
            return
        for _ in range(_LEASES_PER_TURN):
            if self._is_draining:
                return
            lease = self._lease() if len(self._jobs) < self._capacity else None
            if lease is None:
                self._lease_at = time.monotonic() + self._poll_seconds
                return
            self._add(lease)

    def _lease(self) -> Lease | None:
        self._has_failed_to_lease = False
        try:
            return self._queue.lease(self._offer)
        except (QueueUnavailable, KeyringUnavailable) as exc:
            self._has_failed_to_lease = True
            self._log.warning("could not lease a job", code=exc.code)
            return None

    def _add(self, lease: Lease) -> None:
        job = lease.job
        log = self._log.bind(job_id=job.id, trace_id=job.trace_id, tenant_id=job.tenant_id)
        log.info("job leased", attempt=job.attempt, fence=lease.fence, model=job.spec.model)
        provider_job = ProviderJob(lease, self._services, log)
        self._heartbeats.add(provider_job)
        with self._changed:
            self._jobs.add(provider_job)
        self._schedule(provider_job, 0.0)

    def _schedule(self, job: ProviderJob, seconds: float) -> None:
        with self._changed:
            heapq.heappush(self._waiting, (time.monotonic() + seconds, next(self._numbers), job))
            self._changed.notify()

    def _dispatch(self) -> None:
        """Submit every job that is due, or that should stop, to the pool."""
        now = time.monotonic()
        with self._changed:
            if any(job.is_stopping for _, _, job in self._waiting):
                self._waiting = [(0.0 if job.is_stopping else at, n, job) for at, n, job in self._waiting]
                heapq.heapify(self._waiting)
            due = []
            while self._waiting and self._waiting[0][0] <= now:
                due.append(heapq.heappop(self._waiting)[2])
        for job in due:
            self._pool.submit(self._advance, job)

    def _advance(self, job: ProviderJob) -> None:
        # After an exception the lease expires, and the next worker resumes the job.
        seconds = attempt("provider job", job.step)
        if seconds is None:
            self._remove(job)
        else:
            self._schedule(job, seconds)

    def _remove(self, job: ProviderJob) -> None:
        self._heartbeats.remove(job)
        with self._changed:
            self._jobs.discard(job)
            self._changed.notify()

    def _sleep(self) -> None:
        # After an error the worker waits for `poll_seconds`: the waker may return immediately.
        if not self._jobs and not self._has_failed_to_lease:
            self._queue.wait(self._offer, lambda: self._is_draining)
            self._lease_at = 0.0
            return
        with self._changed:
            soonest = self._waiting[0][0] if self._waiting else float("inf")
            left = min(soonest, self._lease_at) - time.monotonic()
            if left > 0 and not self._is_draining:
                self._changed.wait(min(left, _MAX_SLEEP_SECONDS))

    def _sweep(self) -> None:
        if time.monotonic() >= self._sweep_at:
            self._sweep_at = time.monotonic() + _SWEEP_SECONDS
            self._pool.submit(attempt, "provider orphans", self._orphans.run)

    def _hand_back(self) -> None:
        """Hand waiting jobs back immediately; running steps may finish until the drain ends.

        If the database does not answer by then, the leases of the remaining jobs expire.
        """
        while self._jobs:
            with self._changed:
                waiting = [job for _, _, job in self._waiting]
                self._waiting.clear()
                if not waiting:
                    self._changed.wait(_MAX_SLEEP_SECONDS)
                if time.monotonic() > self._drain_ends:
                    for job in self._jobs:
                        job.stop(Drained())
            for job in waiting:
                job.stop(Drained())
                if time.monotonic() <= self._services.publisher.ends_at:
                    attempt("provider job", job.hand_back)
                self._remove(job)
