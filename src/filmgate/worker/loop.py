"""The worker: lease, render, hand over to the upload thread, lease again, until told to drain."""

import time
from concurrent.futures import Future, ThreadPoolExecutor

from filmgate.errors import (
    DeviceError,
    KeyringUnavailable,
    LeaseLost,
    ObjectCorrupt,
    QueueUnavailable,
)
from filmgate.jobs import Lease, WorkerId
from filmgate.scheduling.base import JobQueue, Offer
from filmgate.settings import WorkerSettings
from filmgate.store.base import ObjectStore
from filmgate.telemetry.logs import Log
from filmgate.worker.attempt import Attempt, Rendering
from filmgate.worker.base import Runner
from filmgate.worker.failures import Drained, judge
from filmgate.worker.heartbeat import Lifeline
from filmgate.worker.publisher import Publisher

_NAP_SECONDS = 0.2


class Worker:
    """One GPU's worth of work: one job renders while the one before it uploads."""

    def __init__(
        self,
        worker_id: WorkerId,
        runner: Runner,
        queue: JobQueue,
        store: ObjectStore,
        settings: WorkerSettings,
    ) -> None:
        self._runner = runner
        self._queue = queue
        self._store = store
        self._settings = settings
        self._publisher = Publisher(queue, store, settings)
        self._offer = Offer(worker_id, runner.models, runner.route, runner.device)
        # A plain flag: a signal handler may not take the lock inside an Event.
        self._is_draining = False
        self._drain_ends = float("inf")
        self._uploader = ThreadPoolExecutor(1, thread_name_prefix="upload")
        self._upload: Future[None] | None = None
        self._uploading: Lifeline | None = None
        self._log = Log("worker", worker_id=worker_id)

    def drain(self) -> None:
        """Lease nothing more; finish what runs, or hand it back when the time is up. Safe in a signal."""
        self._drain_ends = time.monotonic() + self._settings.drain_seconds
        self._is_draining = True

    def run(self) -> None:
        """Prove the device with a canary, then work until drained. Raises DeviceError when it fails."""
        self._runner.check()
        self._log.info("ready", device=self._runner.device)
        try:
            while not self._is_draining:
                if not self._work_once():
                    self._rest()
                self._publisher.delete_old_fragments()
        finally:
            self._uploader.shutdown(wait=True)
            self._publisher.delete_old_fragments(is_last=True)
        if self._upload is not None:
            self._upload.result()
        self._log.info("drained")

    def _rest(self) -> None:
        wakes_at = time.monotonic() + self._settings.poll_seconds
        while not self._is_draining and (left := wakes_at - time.monotonic()) > 0:
            time.sleep(min(left, _NAP_SECONDS))

    def _work_once(self) -> bool:
        """One job, if there is one."""
        if self._is_unsure():
            return False
        try:
            lease = self._queue.lease(self._offer)
        except (QueueUnavailable, KeyringUnavailable) as exc:
            self._log.warning("no lease", code=exc.code)
            return False
        if lease is None:
            return False
        log = self._log.bind(job_id=lease.job.id, trace_id=lease.job.trace_id, tenant_id=lease.job.tenant_id)
        log.info("job leased", attempt=lease.job.attempt, fence=lease.fence, model=lease.job.spec.model)
        lifeline = Lifeline(self._queue, lease, self._settings, log)
        if self._is_draining:  # a lease that was waited for may come after the signal
            self._end_attempt(lease, lifeline, Drained(), log)
            return False
        lifeline.start()
        if (rendering := self._render(lease, lifeline, log)) is not None:
            self._hand_over(rendering, log)
        return True

    def _is_unsure(self) -> bool:
        """After an outage the clip being uploaded may look abandoned: do not lease our own job again."""
        is_uploading = self._upload is not None and not self._upload.done()
        return is_uploading and self._uploading is not None and not self._uploading.is_sure

    def _render(self, lease: Lease, lifeline: Lifeline, log: Log) -> Rendering | None:
        def check() -> None:
            lifeline.check()
            if time.monotonic() > self._drain_ends:
                raise Drained

        try:
            return Attempt(lease, lifeline, self._store, log).render(self._runner, check)
        except DeviceError as exc:
            # Whatever the device did to this job it would do to the next: end the process with it.
            self._end_attempt(lease, lifeline, exc, log)
            raise
        except Exception as exc:  # noqa: BLE001 - the job's edge: every failure ends this attempt, no other
            self._end_attempt(lease, lifeline, exc, log)
        return None

    def _hand_over(self, rendering: Rendering, log: Log) -> None:
        """Give the upload thread the next clip; wait here while it still has the one before."""
        if self._upload is not None:
            self._upload.result()
        self._uploading = rendering.heartbeat
        self._upload = self._uploader.submit(self._publish, rendering, log)

    def _publish(self, rendering: Rendering, log: Log) -> None:
        try:
            self._publisher.publish(rendering, log)
            rendering.heartbeat.close()
        except Exception as exc:  # noqa: BLE001 - the job's edge
            self._end_attempt(rendering.lease, rendering.heartbeat, exc, log)

    def _end_attempt(self, lease: Lease, lifeline: Lifeline, error: Exception, log: Log) -> None:
        lifeline.close()
        if isinstance(error, ObjectCorrupt):
            # A checkpoint that does not verify would fail every attempt to come.
            self._publisher.delete_checkpoint(lease)
        try:
            if isinstance(error, LeaseLost):
                raise error
            setback = judge(error)
            job = self._publisher.fail_attempt(lease, setback)
            log.error("attempt failed", error=error, reason=setback.failure.reason, state=job.state)
        except LeaseLost:
            log.warning("the job has another worker; what this one made is thrown away")
            self._publisher.discard(lease)
