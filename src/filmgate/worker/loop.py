"""The worker: lease, render, hand over to the upload thread, lease again, until it drains."""

import math
import time
from concurrent.futures import Future, ThreadPoolExecutor

from filmgate.errors import DeviceError, KeyringUnavailable, LeaseLost, ObjectCorrupt, QueueUnavailable
from filmgate.jobs import Lease, WorkerId
from filmgate.scheduling.base import JobQueue, Offer
from filmgate.scheduling.workers import WorkerStatus
from filmgate.settings import WorkerSettings
from filmgate.store.base import ObjectStore
from filmgate.telemetry.logs import Log
from filmgate.worker.attempt import Attempt, Rendering
from filmgate.worker.base import Runner
from filmgate.worker.failures import Drained, to_failure
from filmgate.worker.health import WorkerHealth
from filmgate.worker.heartbeat import Heartbeat
from filmgate.worker.publisher import Publisher


class Worker:
    """The work of one GPU: one job renders while the one before it uploads."""

    def __init__(
        self,
        worker_id: WorkerId,
        runner: Runner,
        queue: JobQueue,
        store: ObjectStore,
        settings: WorkerSettings,
        health: WorkerHealth | None = None,
    ) -> None:
        self._health = health or WorkerHealth()
        self._runner = runner
        self._queue = queue
        self._store = store
        self._settings = settings
        self._publisher = Publisher(queue, store, settings)
        self._offer = Offer(worker_id, runner.models, runner.route, runner.device)
        # Not an Event: a signal handler must not take its lock.
        self._is_draining = False
        self._drain_ends = float("inf")
        self._uploader = ThreadPoolExecutor(1, thread_name_prefix="upload")
        self._upload: Future[None] | None = None
        self._uploading: Heartbeat | None = None
        self._log = Log("worker", worker_id=worker_id)
        self.is_ready = False

    @property
    def status(self) -> WorkerStatus:
        """What the worker announces."""
        offer = self._offer
        return WorkerStatus(offer.worker_id, offer.route, offer.models, offer.device or "")

    def drain(self, within_seconds: float = math.inf) -> None:
        """Lease nothing more; finish the running job, or hand it back when the time is over.

        `within_seconds` may shorten the setting; a second call never extends the first.
        Safe in a signal handler.
        """
        seconds = min(self._settings.drain_seconds, within_seconds)
        self._drain_ends = min(self._drain_ends, time.monotonic() + seconds)
        self._is_draining = True
        self._health.mark_draining()

    def run(self) -> None:
        """Check the device with a canary clip, then work until drained. Raises DeviceError."""
        self._runner.check()
        self.is_ready = True
        self._health.mark_ready()
        self._log.info("ready", device=self._runner.device)
        try:
            while not self._is_draining:
                if not self._work_once():
                    self._queue.wait(self._offer, lambda: self._is_draining)
                self._publisher.delete_old_fragments()
        finally:
            self._uploader.shutdown(wait=True)
            self._publisher.delete_old_fragments(is_last=True)
        if self._upload is not None:
            self._upload.result()
        self._log.info("drained")

    def _work_once(self) -> bool:
        """Lease and render one job. Returns False when there was none."""
        if self._may_have_expired() or (lease := self._lease()) is None:
            return False
        job = lease.job
        log = self._log.bind(job_id=job.id, trace_id=job.trace_id, tenant_id=job.tenant_id)
        log.info("job leased", attempt=job.attempt, fence=lease.fence, model=job.spec.model)
        heartbeat = Heartbeat(self._queue, lease, self._settings, log)
        if self._is_draining:  # the signal came during the lease
            self._fail_attempt(lease, heartbeat, Drained(), log)
            return False
        heartbeat.start()
        if (rendering := self._render(lease, heartbeat, log)) is not None:
            self._hand_over(rendering, log)
        return True

    def _lease(self) -> Lease | None:
        try:
            return self._queue.lease(self._offer)
        except (QueueUnavailable, KeyringUnavailable) as exc:
            self._log.warning("could not lease a job", code=exc.code)
            return None

    def _may_have_expired(self) -> bool:
        """After an outage the lease of the uploading job may have expired: do not lease it again."""
        is_uploading = self._upload is not None and not self._upload.done()
        return is_uploading and self._uploading is not None and not self._uploading.is_valid

    def _render(self, lease: Lease, heartbeat: Heartbeat, log: Log) -> Rendering | None:
        def check() -> None:
            heartbeat.check()
            if time.monotonic() > self._drain_ends:
                raise Drained

        try:
            return Attempt(lease, heartbeat, self._store, log).render(self._runner, check)
        except DeviceError as exc:
            # The next job would fail on this device too: end the process.
            self._fail_attempt(lease, heartbeat, exc, log)
            raise
        except Exception as exc:  # noqa: BLE001 - the boundary of a job: an error ends this attempt only
            self._fail_attempt(lease, heartbeat, exc, log)
        return None

    def _hand_over(self, rendering: Rendering, log: Log) -> None:
        """Submit the clip to the upload thread; wait while it still has the one before."""
        if self._upload is not None:
            self._upload.result()
        self._uploading = rendering.heartbeat
        self._upload = self._uploader.submit(self._publish, rendering, log)

    def _publish(self, rendering: Rendering, log: Log) -> None:
        try:
            self._publisher.publish(rendering, log)
            rendering.heartbeat.close()
        except Exception as exc:  # noqa: BLE001 - the boundary of a job
            self._fail_attempt(rendering.lease, rendering.heartbeat, exc, log)

    def _fail_attempt(self, lease: Lease, heartbeat: Heartbeat, error: Exception, log: Log) -> None:
        heartbeat.close()
        if isinstance(error, ObjectCorrupt):
            # A corrupt checkpoint would fail every later attempt.
            self._publisher.delete_checkpoint(lease)
        try:
            if isinstance(error, LeaseLost):
                raise error
            failed = to_failure(error)
            job = self._publisher.fail_attempt(lease, failed)
            log.error("attempt failed", error=error, reason=failed.failure.reason, state=job.state)
        except LeaseLost:
            log.warning("another worker has the job; discarding this attempt")
            self._publisher.discard(lease)
