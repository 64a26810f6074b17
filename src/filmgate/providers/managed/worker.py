"""The managed worker: lease, start, come back when it is due. Waiting costs an entry in a heap, no thread."""

import heapq
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count

from filmgate.errors import KeyringUnavailable, ProviderError, ProviderUnusable, QueueUnavailable
from filmgate.jobs import Lease, Route, WorkerId
from filmgate.providers.managed.heartbeats import Pulse
from filmgate.providers.managed.orphans import LeftoverSweep
from filmgate.providers.managed.provider_job import Errand, Parts
from filmgate.scheduling.base import JobQueue, Offer
from filmgate.settings import WorkerSettings
from filmgate.telemetry.logs import Log
from filmgate.worker.failures import Drained

_NAP_SECONDS = 0.2
_LEASES_A_TURN = 16
_SWEEP_SECONDS = 60.0


class ManagedWorker:
    """Hundreds of provider jobs in one process."""

    def __init__(
        self,
        worker_id: WorkerId,
        models: tuple[str, ...],
        queue: JobQueue,
        parts: Parts,
        settings: WorkerSettings,
    ) -> None:
        self._queue = queue
        self._parts = parts
        self._settings = settings
        device = f"managed:{parts.provider.name}"
        self._offer = Offer(worker_id, models, Route.MANAGED, device)
        self._log = Log("worker", worker_id=worker_id)
        self._pulse = Pulse(queue, settings)
        self._pool = ThreadPoolExecutor(parts.settings.threads, thread_name_prefix="managed")
        self._sweep = LeftoverSweep(parts.provider, parts.invocations)
        self._sweep_at = 0.0
        self._lease_at = 0.0
        # Guards what follows; notified whenever an errand is due sooner than was thought.
        self._changed = threading.Condition()
        self._errands: set[Errand] = set()
        self._waiting: list[tuple[float, int, Errand]] = []
        self._numbers = count()
        # A plain flag: a signal handler may not take the lock inside an Event.
        self._is_draining = False
        self._drain_ends = float("inf")
        self._capacity = parts.settings.max_jobs

    def drain(self) -> None:
        """Lease nothing more; steps may finish, what waits is handed back. Safe in a signal."""
        self._drain_ends = time.monotonic() + self._settings.drain_seconds
        self._is_draining = True

    def run(self) -> None:
        """Work until drained. Raises ProviderUnusable when the provider cannot be used as configured."""
        self._capacity = self._measure_capacity()
        self._log.info("ready", device=self._offer.device, jobs=self._capacity)
        self._pulse.start()
        try:
            while not self._is_draining:
                self._lease_some()
                self._dispatch()
                self._tidy()
                self._nap()
            self._hand_back()
        finally:
            self._pool.shutdown(wait=True)
            self._pulse.stop()
        self._log.info("drained")

    @property
    def held(self) -> int:
        """Jobs this process has leased right now."""
        return len(self._errands)

    def _measure_capacity(self) -> int:
        """No more than the provider takes at once: what it would refuse is better off in the queue."""
        most = self._parts.settings.max_jobs
        try:
            offers = self._parts.provider.offers()
        except ProviderUnusable:
            raise
        except ProviderError as exc:
            # It may be down for a moment, and jobs that wait there must be waited for all the same.
            self._log.warning("the provider does not answer yet", code=exc.code)
            return most
        rooms = [most if offer.max_concurrent is None else offer.max_concurrent for offer in offers]
        return min(most, max(rooms, default=most))

    def _lease_some(self) -> None:
        if time.monotonic() < self._lease_at:
            return
        for _ in range(_LEASES_A_TURN):
            if self._is_draining:
                return
            if len(self._errands) >= self._capacity:
                self._lease_at = time.monotonic() + self._settings.poll_seconds
                return
            try:
                lease = self._queue.lease(self._offer)
            except (QueueUnavailable, KeyringUnavailable) as exc:
                self._log.warning("no lease", code=exc.code)
                lease = None
            if lease is None:
                self._lease_at = time.monotonic() + self._settings.poll_seconds
                return
            self._take(lease)

    def _take(self, lease: Lease) -> None:
        job = lease.job
        log = self._log.bind(job_id=job.id, trace_id=job.trace_id, tenant_id=job.tenant_id)
        log.info("job leased", attempt=job.attempt, fence=lease.fence, model=job.spec.model)
        errand = Errand(lease, self._parts, log)
        self._pulse.add(errand)
        with self._changed:
            self._errands.add(errand)
        self._plan(errand, 0.0)

    def _plan(self, errand: Errand, seconds: float) -> None:
        with self._changed:
            heapq.heappush(self._waiting, (time.monotonic() + seconds, next(self._numbers), errand))
            self._changed.notify()

    def _dispatch(self) -> None:
        """Give every errand that is due, or should stop, to the pool."""
        now = time.monotonic()
        with self._changed:
            if any(errand.is_stopping for _, _, errand in self._waiting):
                self._waiting = [(0.0 if e.is_stopping else at, n, e) for at, n, e in self._waiting]
                heapq.heapify(self._waiting)
            due = []
            while self._waiting and self._waiting[0][0] <= now:
                due.append(heapq.heappop(self._waiting)[2])
        for errand in due:
            self._pool.submit(self._advance, errand)

    def _advance(self, errand: Errand) -> None:
        seconds = self._edge(errand, errand.step)
        if seconds is None:
            self._forget(errand)
        else:
            self._plan(errand, seconds)

    def _edge(self, errand: Errand, action: Callable[[], float | None]) -> float | None:
        try:
            return action()
        except Exception as exc:  # noqa: BLE001 - a thread's edge: the lease runs out, the next worker goes on
            self._log.error("an errand broke off", error=exc, job_id=errand.lease.job.id)
            return None

    def _forget(self, errand: Errand) -> None:
        self._pulse.drop(errand)
        with self._changed:
            self._errands.discard(errand)
            self._changed.notify()

    def _nap(self) -> None:
        with self._changed:
            soonest = self._waiting[0][0] if self._waiting else float("inf")
            until = min(soonest, self._lease_at) - time.monotonic()
            if until > 0 and not self._is_draining:
                self._changed.wait(min(until, _NAP_SECONDS))

    def _tidy(self) -> None:
        if time.monotonic() < self._sweep_at:
            return
        self._sweep_at = time.monotonic() + _SWEEP_SECONDS
        self._pool.submit(self._sweep.sweep)

    def _hand_back(self) -> None:
        """Jobs that wait go back at once; those in the middle of a step may finish it, for a while."""
        while self._errands:
            with self._changed:
                waiting = [errand for _, _, errand in self._waiting]
                self._waiting.clear()
                if not waiting:
                    self._changed.wait(_NAP_SECONDS)
                if time.monotonic() > self._drain_ends:
                    for errand in self._errands:
                        errand.stop(Drained())
            for errand in waiting:
                errand.stop(Drained())
                self._edge(errand, errand.hand_back)
                self._forget(errand)
