"""One job at a provider as a sequence of steps. Each step returns after how many seconds the next is due.

The provider bills a job once because the order is fixed: the intent is recorded before the start, the start
has the job's id as its token, and the provider's id is recorded before the wait. The next worker resumes
after the last of these steps. An intent without an id means that the provider may have started the job: the
intent of a start that certainly failed is withdrawn.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from filmgate.errors import (
    Cancelled,
    FilmgateError,
    LeaseLost,
    ProviderCannot,
    ProviderError,
    ProviderRefused,
    ProviderThrottled,
    ProviderUnusable,
    QueueUnavailable,
)
from filmgate.jobs import (
    Failure,
    InvocationId,
    Lease,
    ManagedPolicy,
    Progress,
    Reason,
    RouteReason,
    Stage,
    TenantId,
)
from filmgate.providers.base import InvocationState, Provider, ProviderTask, Rendition
from filmgate.providers.invocations import InvocationRecord, RecordState, SqlInvocations
from filmgate.providers.managed.download import ClipDownloader
from filmgate.providers.managed.guarded import GuardedProvider
from filmgate.scheduling.base import AttemptFailure
from filmgate.settings import ProviderSettings
from filmgate.store.base import ObjectStore
from filmgate.telemetry.logs import Log
from filmgate.telemetry.periodic import attempt
from filmgate.telemetry.trace_context import within_trace
from filmgate.worker.attempt import find_source
from filmgate.worker.publisher import Publisher
from filmgate.worker.tracing import WorkerTracing

_PERCENT = 100
# Progress stays at or below this until the download is complete.
_MAX_WAITING_FRACTION = 0.95
_BACKOFF_SECONDS = (0.5, 30.0)
_FIRST_POLL_SECONDS = 1.0
_PERMANENT = (ProviderRefused, ProviderUnusable, ProviderCannot)


@dataclass(frozen=True, slots=True)
class ManagedServices:
    """What all provider jobs of a process share."""

    provider: Provider
    invocations: SqlInvocations
    guarded: GuardedProvider
    store: ObjectStore
    publisher: Publisher
    downloader: ClipDownloader
    policy_of: Callable[[TenantId], ManagedPolicy]
    settings: ProviderSettings
    tracing: WorkerTracing = field(default_factory=WorkerTracing)


class ProviderJob:
    """A leased job at the provider. Its steps run one at a time, on any thread."""

    def __init__(self, lease: Lease, services: ManagedServices, log: Log) -> None:
        self.lease = lease
        self._services = services
        self._log = log
        self._rendition: Rendition | None = None
        self._invocation_id: InvocationId | None = None
        # Of the provider job, on the monotonic clock: the host's may differ from the database's, and step.
        self._began_at = time.monotonic()
        self._start_retries_end = time.monotonic() + services.settings.start_retry_seconds
        self._failures = 0
        self._fraction = 0.0
        self._reported_fraction: float | None = None
        self._has_recorded_intent = False
        self._may_have_started = False
        self._stage: Stage | None = None
        self._end: Exception | None = None
        self._failure: Exception | None = None
        self._trace = services.tracing.begin(lease)
        self._polls = 0
        self._polling_since = 0.0

    def stop(self, end: Exception) -> None:
        """End the next step, or the running download, with this error. The first error stays."""
        if self._end is None:
            self._end = end

    @property
    def is_stopping(self) -> bool:
        return self._end is not None

    def check(self) -> None:
        """Raises the error of `stop`."""
        if self._end is not None:
            raise self._end

    def progress(self) -> Progress | None:
        """The provider's progress, or an estimate from the elapsed time. None before the job is started."""
        if self._stage is None:
            return None
        if self._reported_fraction is None:
            rendition = self._rendition or self._services.settings  # resumed: the model is not known
            elapsed = self._age_seconds / max(rendition.expected_seconds, 1.0)
            self._fraction = max(self._fraction, min(elapsed, 1.0) * _MAX_WAITING_FRACTION)
        return Progress(self._stage, max(int(self._fraction * _PERCENT), 1), _PERCENT, self._fraction)

    @property
    def _age_seconds(self) -> float:
        """Since the start at the provider."""
        return time.monotonic() - self._began_at

    def opening(self) -> Progress | None:
        """The first progress of the current stage; None before the job is started."""
        return Progress(self._stage, 0, _PERCENT, self._fraction) if self._stage is not None else None

    def step(self) -> float | None:
        """Do what is due. Returns the seconds until the next step, None after the last."""
        with within_trace(self._trace.context):
            seconds = self._step()
        if seconds is None:
            self._trace.end(self._failure)
        return seconds

    def _step(self) -> float | None:
        try:
            self.check()
            seconds = self._begin() if self._stage is None else self._poll()
        except (QueueUnavailable, ProviderError) as exc:
            return self._back_off(exc)
        except Exception as exc:  # noqa: BLE001 - the boundary of a job: an error ends this attempt only
            self._fail_attempt(exc)
            return None
        self._failures = 0
        return seconds

    def hand_back(self) -> None:
        """Return the job to the queue. The provider keeps rendering; the next worker resumes the wait."""
        if self._end is not None:
            with within_trace(self._trace.context):
                self._fail_attempt(self._end)
            self._trace.end(self._failure)

    def _begin(self) -> float | None:
        """Resume what an earlier worker started, or start."""
        services, job_id = self._services, self.lease.job.id
        if self._invocation_id is None:
            record = services.invocations.find(job_id)
            if record is not None and record.invocation_id is not None:
                return self._resume(record, record.invocation_id)
            # The worker that recorded this intent may have started the job without getting the answer.
            self._may_have_started |= record is not None and not self._has_recorded_intent
            self._invocation_id = self._start()
        # If this fails, only this is repeated: a second start could be a second job at the provider.
        services.invocations.set_invocation(job_id, self._invocation_id)
        self._stage = Stage.DENOISE
        return self._pause(min(_FIRST_POLL_SECONDS, services.settings.poll_seconds))

    def _resume(self, record: InvocationRecord, invocation_id: InvocationId) -> float | None:
        if record.state is not RecordState.OPEN or record.provider != self._services.provider.name:
            # The job failed there, or was started at a provider that is no longer configured.
            self._fail_at_provider(f"the job was at {record.provider} before")
            return None
        self._invocation_id, self._began_at = invocation_id, time.monotonic() - record.age_seconds
        self._log.info("resumed the wait at the provider")
        self._stage = Stage.DENOISE
        return 0.0

    def _start(self) -> InvocationId:
        job, services = self.lease.job, self._services
        rendition = self._rendition or services.provider.adapt(job.spec, services.policy_of(job.tenant_id))
        self._rendition = rendition
        routing = replace(
            job.routing,
            provider=services.provider.name,
            provider_model=rendition.model.model,
            changes=rendition.changes,
            usd=rendition.usd,
        )
        self._has_recorded_intent = True
        record = services.invocations.begin(self.lease, services.provider.name, routing)
        self._began_at = time.monotonic() - record.age_seconds
        task = ProviderTask(job.id, rendition, find_source(services.store, job))
        is_retry = self._failures > 0
        with self._trace.span("provider start", provider=services.provider.name):
            invocation_id = services.guarded.start(lambda: services.provider.start(task), is_retry=is_retry)
        self._log.info("started at the provider", model=rendition.model.model)
        return invocation_id

    def _poll(self) -> float | None:
        assert self._invocation_id is not None
        invocation_id, services = self._invocation_id, self._services
        self._polling_since = self._polling_since or time.monotonic()
        self._polls += 1
        invocation = services.guarded.poll(lambda: services.provider.poll(invocation_id))
        if invocation.state is not InvocationState.PENDING:
            # One span for all polls: a job is polled for minutes.
            name, now = services.provider.name, time.monotonic()
            self._trace.record("provider poll", self._polling_since, now, provider=name, polls=self._polls)
        if invocation.state is InvocationState.COMPLETED:
            self._finish(invocation_id)
            return None
        if invocation.state is InvocationState.FAILED:
            self._fail_at_provider(invocation.message)
            return None
        if self._age_seconds > services.settings.limit_seconds:
            services.provider.cancel(invocation_id)
            self._fail_at_provider(f"not finished within {services.settings.limit_seconds:g} seconds")
            return None
        self._reported_fraction = invocation.fraction
        self._fraction = max(self._fraction, min(invocation.fraction or 0.0, _MAX_WAITING_FRACTION))
        return self._pause(invocation.poll_after_seconds)

    def _finish(self, invocation_id: InvocationId) -> None:
        """Store the clip, complete the job, then delete the provider's copy."""
        services = self._services
        self._stage, self._fraction = Stage.UPLOAD, max(self._fraction, _MAX_WAITING_FRACTION)
        with self._trace.span("provider download", provider=services.provider.name):
            result = services.downloader.download(self.lease, invocation_id, self.check)
        with self._trace.span("publish", size_bytes=result.clip.size_bytes):
            job = services.publisher.complete(self.lease, result, self._log)
        if job is None:
            return  # the next worker may need the provider's copy
        # The job is complete. An error from here on must not fail the attempt, which would delete the clip.
        attempt("provider job", lambda: self._delete_copy(invocation_id))

    def _delete_copy(self, invocation_id: InvocationId) -> None:
        """Delete the clip at the provider. If this fails, the orphan sweep deletes it later."""
        services = self._services
        try:
            services.provider.discard(invocation_id)
            services.invocations.set_state(self.lease.job.id, RecordState.CLOSED)
            if self._rendition is not None:  # a resumed job has no stated duration to compare with
                services.guarded.observe(self._age_seconds, self._rendition.expected_seconds)
        except (ProviderError, QueueUnavailable) as exc:
            self._log.warning("could not delete the provider's copy; retrying later", code=exc.code)

    def _fail_at_provider(self, message: str) -> None:
        self._services.invocations.fail(self.lease)
        self._return_to_gpu(message, RouteReason.RETURNED)

    def _pause(self, asked: float | None) -> float:
        seconds = self._services.settings.poll_seconds if asked is None else asked
        return min(max(seconds, 0.02), 60.0) * random.uniform(0.9, 1.1)  # noqa: S311 - jitter

    def _back_off(self, error: FilmgateError) -> float | None:
        """Retry later. A job whose start keeps failing returns to local GPUs; a started job waits."""
        self._failures += 1
        # The provider may have started the job although no answer arrived.
        self._may_have_started |= self._has_recorded_intent and type(error) is ProviderError
        self._log.warning("provider call failed; backing off", code=error.code, attempt=self._failures)
        try:
            if self._invocation_id is None and self._end_hopeless_start(error):
                return None
            if self._is_wait_over(error):
                self._fail_at_provider(str(error))
                return None
        except QueueUnavailable as exc:
            self._log.warning("the database is unavailable; retrying", code=exc.code)
        except LeaseLost as exc:
            self._fail_attempt(exc)
            return None
        first, longest = _BACKOFF_SECONDS
        seconds = min(first * 2.0 ** min(self._failures - 1, 10), longest)
        asked = error.retry_after_seconds if isinstance(error, ProviderThrottled) else None
        # Jitter, so that jobs that were throttled together do not retry together.
        return max(min(asked or 0.0, longest), seconds * random.uniform(0.5, 1.0))  # noqa: S311

    def _end_hopeless_start(self, error: FilmgateError) -> bool:
        """Return the job to local GPUs if its start is hopeless. Returns whether it was."""
        if isinstance(error, QueueUnavailable):
            return False
        is_hopeless = self._is_start_hopeless(error)
        if is_hopeless or not self._may_have_started:
            self._services.invocations.withdraw(self.lease)
        if is_hopeless:
            is_permanent = isinstance(error, _PERMANENT)
            reason = RouteReason.RETURNED if is_permanent else RouteReason.PROVIDER_UNHEALTHY
            self._return_to_gpu(str(error), reason)
        return is_hopeless

    def _is_start_hopeless(self, error: FilmgateError) -> bool:
        if isinstance(error, ProviderRefused | ProviderCannot) or time.monotonic() > self._start_retries_end:
            return True
        if self._may_have_started:
            return False  # only another start with the same token tells the id of a job that is paid for
        # A throttled job does not wait while the breaker is open: another job can be the next probe.
        is_throttled = isinstance(error, ProviderThrottled)
        return isinstance(error, ProviderUnusable) or (is_throttled and self._services.guarded.is_open())

    def _is_wait_over(self, error: FilmgateError) -> bool:
        is_late = self._age_seconds > self._services.settings.limit_seconds
        return self._invocation_id is not None and (isinstance(error, ProviderRefused) or is_late)

    def _return_to_gpu(self, message: str, reason: RouteReason) -> None:
        """End this attempt without counting it; local GPUs render the job. Raises LeaseLost.

        A job with the reason RETURNED is not sent to a provider again.
        """
        self._failure = ProviderError(message)
        routing = replace(
            self.lease.job.routing,
            reason=reason,
            detail=message,
            changes=(),
            usd=None,
            expected_seconds=None,
            decided_at=time.time(),
        )
        failed = AttemptFailure(Failure(Reason.PROVIDER_FAILED, message), uses_attempt=False, routing=routing)
        job = self._services.publisher.fail_attempt(self.lease, failed)
        self._log.warning("the job returns to the local GPUs", state=job.state, route=job.route)

    def _fail_attempt(self, error: Exception) -> None:
        self._failure = error
        if isinstance(error, Cancelled) and self._invocation_id is not None:
            self._cancel_at_provider(self._invocation_id)
        self._services.publisher.end_with_error(self.lease, error, self._log)

    def _cancel_at_provider(self, invocation_id: InvocationId) -> None:
        try:
            self._services.provider.cancel(invocation_id)
        except ProviderError as exc:
            self._log.warning("could not cancel at the provider; its clip is deleted later", code=exc.code)
