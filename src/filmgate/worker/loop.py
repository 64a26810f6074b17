"""The worker: leases jobs and renders them back to back, until it drains.

While one job decodes, the next one is leased and prepared; while that one denoises, the one before it is
encoded, stored and completed. Each job has its own thread, and `turns.py` decides which one has the device.
"""

import math
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace

from filmgate.errors import (
    DeviceBroken,
    DeviceDrifted,
    DeviceError,
    KeyringUnavailable,
    LeaseLost,
    ObjectCorrupt,
    QueueUnavailable,
)
from filmgate.jobs import Lease, WorkerId
from filmgate.scheduling.base import AttemptResult, JobQueue, Offer, Provenance, read_tenants
from filmgate.scheduling.workers import WorkerStatus
from filmgate.settings import WorkerSettings
from filmgate.store.base import ObjectStore
from filmgate.telemetry.logs import Log
from filmgate.telemetry.trace_context import within_trace
from filmgate.worker.attempt import Attempt
from filmgate.worker.base import Runner, SelfCheckingRunner
from filmgate.worker.failures import Drained, to_failure
from filmgate.worker.health import Part, WorkerTelemetry
from filmgate.worker.heartbeat import Heartbeat
from filmgate.worker.publisher import Publisher
from filmgate.worker.turns import MAX_JOBS, Device, DeviceTurn

# How long after the end of a drain a job may take to stop and hand itself back.
_LATE_SECONDS = 5.0
_WAIT_SECONDS = 0.2


class Worker:
    """The work of one GPU."""

    def __init__(
        self,
        worker_id: WorkerId,
        runner: Runner,
        queue: JobQueue,
        store: ObjectStore,
        settings: WorkerSettings,
        telemetry: WorkerTelemetry | None = None,
    ) -> None:
        telemetry = telemetry or WorkerTelemetry()
        self._health = telemetry.health
        self._metrics = telemetry.metrics
        self._tracing = telemetry.tracing
        self._runner = runner
        self._queue = queue
        self._store = store
        self._settings = settings
        self._provenance = Provenance(self._tracing.gpu.uuid, self._tracing.instance_id)
        self._publisher = Publisher(queue, store)
        tenants = read_tenants(settings)
        self._offer = Offer(worker_id, runner.models, runner.route, runner.device, tenants=tenants)
        # Not an Event: a signal handler must not take its lock.
        self._is_draining = False
        self._drain_ends = float("inf")
        self._broken: DeviceBroken | None = None
        self._checked_at = time.monotonic()
        self._device = Device(self._metrics.device)
        self._threads = ThreadPoolExecutor(MAX_JOBS, thread_name_prefix="job")
        self._jobs: dict[Future[None], Attempt] = {}
        self._log = Log("worker", worker_id=worker_id)
        self.is_ready = False

    @property
    def status(self) -> WorkerStatus:
        """What the worker announces."""
        offer = self._offer
        status = WorkerStatus(
            offer.worker_id,
            offer.route,
            offer.models,
            offer.device or "",
            tenants=offer.tenants,
            is_draining=self._is_draining,
            device_seconds=self._metrics.device.read(),
        )
        if not isinstance(self._runner, SelfCheckingRunner):
            return status
        return replace(status, speed=self._runner.speed, gpu=self._runner.gpu_status)

    def drain(self, within_seconds: float = math.inf) -> None:
        """Lease nothing more; finish the running job, or hand it back when the time is over.

        A job that is only prepared is handed back immediately. `within_seconds` may shorten the setting; a
        second call never extends the first. Safe in a signal handler.
        """
        seconds = min(self._settings.drain_seconds, within_seconds)
        self._drain_ends = min(self._drain_ends, time.monotonic() + seconds)
        self._publisher.drain(self._drain_ends)
        self._is_draining = True
        self._health.mark_draining()

    def abandon(self, error: DeviceBroken) -> None:
        """The device cannot be trusted: lease nothing more, discard the jobs it has, and end with this error.

        Called from the thread that watches the device.
        """
        self._broken = error
        self.is_ready = False
        self._health.mark(Part.GPU, error.fault)
        self.drain(0.0)
        for attempt in list(self._jobs.values()):
            attempt.heartbeat.stop_work(error)

    def run(self) -> None:
        """Check the device with a canary clip, then work until drained. Raises DeviceError."""
        with self._tracing.start_up.phase("load"):
            self._runner.check()
        self._mark_ready()
        self._log.info("ready", device=self._runner.device)
        try:
            while not self._is_draining:
                self._work_once()
                self._publisher.delete_old_fragments()
                self._forget_finished_jobs()
        finally:
            self._hand_back_late_jobs()
            self._threads.shutdown(wait=True)
            self._publisher.delete_old_fragments(is_last=True)
        self._forget_finished_jobs()
        self._require_whole_device()
        self._log.info("drained")

    def _hand_back_late_jobs(self) -> None:
        """Hand back the jobs that the end of a drain did not stop: one may load a model, or hang on the GPU.

        Another worker can lease them now, and the process may be killed. The fence rejects what their threads
        still write. A clip that is already rendered may be stored.
        """
        late = set(self._jobs)
        # In short waits: a drain may still begin, or end earlier.
        while late and time.monotonic() < self._drain_ends + _LATE_SECONDS:
            late = wait(late, _WAIT_SECONDS).not_done
        error = self._broken or Drained()
        for attempt in [self._jobs[job] for job in late if self._jobs[job].turn.left_at is None]:
            if _has_doubtful_checkpoint(error, attempt.turn):
                self._publisher.delete_checkpoint(attempt.lease)
            try:
                self._queue.fail_attempt(attempt.lease, to_failure(error, attempt.lease.job))
            except (LeaseLost, QueueUnavailable) as exc:
                attempt.log.warning("the job was not handed back", code=exc.code)
            else:
                attempt.log.warning("job handed back before it stopped")

    def _require_whole_device(self) -> None:
        if self._broken is not None:
            raise self._broken

    def _mark_ready(self) -> None:
        versions = {card.name: card.version for card in self._runner.cards()}
        self._offer = replace(self._offer, versions=versions)
        self._checked_at = time.monotonic()
        self.is_ready = self._broken is None
        self._tracing.trace_start(self._offer.worker_id)
        self._health.mark_ready()
        self._metrics.device.start()

    def _recheck(self, after_seconds: float) -> bool:
        """Check the canary again if the last check is this old; whether it did. Raises DeviceDrifted."""
        is_due = self._settings.canary_seconds and time.monotonic() - self._checked_at >= after_seconds
        if not (is_due and isinstance(self._runner, SelfCheckingRunner)):
            return False
        with self._device.reserved(self._is_stopping) as is_reserved:
            return is_reserved and self._check_canary(self._runner)

    def _check_canary(self, runner: SelfCheckingRunner) -> bool:
        try:
            runner.recheck()
        except DeviceDrifted as exc:
            age = round(time.monotonic() - self._checked_at)
            message = "the canary check failed; clips rendered since the last passing check may be wrong"
            self._log.error(message, seconds=age)
            self.is_ready = False
            self._health.mark(Part.CANARY, exc.code)
            self.drain()
            raise
        except QueueUnavailable as exc:
            # The golden clip is in the database. Nothing can be leased either: the next turn tries again.
            self._log.warning("could not check the canary; retrying", code=exc.code)
            return False
        self._checked_at = time.monotonic()
        self._metrics.device.wait()  # the canary had the device: this is no gap between clips
        return True

    def _work_once(self) -> None:
        """Lease the next job and start it, or wait for one."""
        self._device.wait_for_room(self._is_stopping)
        if self._is_draining:
            return
        self._recheck(self._settings.canary_seconds)
        if (lease := self._lease()) is not None:
            self._start(lease)
        elif self._device.is_busy:
            # Once per clip: a job that arrives later belongs to a worker that is idle.
            self._device.wait_until_left(self._is_stopping)
        elif not self._recheck(self._settings.canary_seconds / 2):
            self._metrics.device.wait()
            self._queue.wait(self._offer, self._is_stopping)

    def _is_stopping(self) -> bool:
        return self._is_draining

    def _lease(self) -> Lease | None:
        # After an outage the lease of a running job may have expired: do not lease that job again.
        if any(not attempt.heartbeat.is_valid for job, attempt in self._jobs.items() if not job.done()):
            return None
        try:
            return self._queue.lease(self._offer)
        except (QueueUnavailable, KeyringUnavailable) as exc:
            self._log.warning("could not lease a job", code=exc.code)
            return None

    def _start(self, lease: Lease) -> None:
        job = lease.job
        log = self._log.bind(job_id=job.id, trace_id=job.trace_id, tenant_id=job.tenant_id)
        log.info("job leased", attempt=job.attempt, fence=lease.fence, model=job.spec.model)
        heartbeat = Heartbeat(self._queue, lease, self._settings, log)
        turn = self._device.admit(is_alone=job.attempt > 1)
        turn.check = lambda: self._check(heartbeat, turn)
        attempt = Attempt(lease, heartbeat, turn, self._store, log, self._tracing.begin(lease))
        heartbeat.start()
        self._jobs[self._threads.submit(self._run_job, attempt)] = attempt

    def _check(self, heartbeat: Heartbeat, turn: DeviceTurn) -> None:
        """Raise if the job must stop. A job that has not had the device yet stops as soon as we drain."""
        self._require_whole_device()
        heartbeat.check()
        if self._is_draining and (not turn.is_taken or time.monotonic() > self._drain_ends):
            raise Drained

    def _run_job(self, attempt: Attempt) -> None:
        """The job's thread. Raises only what must end the worker."""
        with within_trace(attempt.trace.context):
            try:
                self._render_and_publish(attempt)
            except DeviceError as exc:
                # The next job would fail on this device too: end the process, and hand back what is prepared.
                self.drain()
                self._fail_attempt(attempt, exc)
                raise
            except Exception as exc:  # noqa: BLE001 - the boundary of a job: an error ends this attempt only
                attempt.turn.leave()
                self._fail_attempt(attempt, exc)
            finally:
                attempt.turn.end()

    def _render_and_publish(self, attempt: Attempt) -> None:
        if self._is_draining:  # the signal came during the lease
            raise Drained
        if attempt.lease.job.attempt > 1:
            attempt.turn.take()  # prepare nothing in parallel with another job
        attempt.render(self._runner)
        clip = attempt.upload(self._settings.store_retry_seconds)
        result = AttemptResult(clip, attempt.timer.seconds, self._provenance)
        with attempt.trace.span("publish", size_bytes=clip.size_bytes):
            self._publisher.complete(attempt.lease, result, attempt.log, has_viewers=True)
        attempt.heartbeat.close()
        attempt.trace.end()

    def _forget_finished_jobs(self) -> None:
        """Raises the error of a job that must end the worker."""
        for job in [job for job in self._jobs if job.done()]:
            del self._jobs[job]
            job.result()

    def _fail_attempt(self, attempt: Attempt, error: Exception) -> None:
        job = attempt.lease.job
        attempt.heartbeat.close()
        if isinstance(error, ObjectCorrupt) or _has_doubtful_checkpoint(error, attempt.turn):
            # A corrupt checkpoint would fail every later attempt, a doubtful one would hide the damage.
            self._publisher.delete_checkpoint(attempt.lease)
        failed = self._publisher.end_with_error(attempt.lease, error, attempt.log)
        if failed is not None:
            self._metrics.attempt_failed(job.spec.model, job.version or "", failed.failure.reason)
        attempt.trace.end(error)


def _has_doubtful_checkpoint(error: Exception, turn: DeviceTurn) -> bool:
    """Whether the latents were stored after the last moment at which the device was known to be right."""
    if not isinstance(error, DeviceBroken) or turn.checkpoint_at is None:
        return False
    return turn.checkpoint_at > error.clean_until
