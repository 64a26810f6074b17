"""One job at a provider, step by step. A step does what is due and says when to come back.

Paying once rests on the order of three writes: the intent before the start, the start with the job's token,
the provider's id before the wait. Whichever worker comes next finds the last of them and goes on from there.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

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
from filmgate.jobs import InvocationId, Job, Lease, ManagedPolicy, Progress, RouteReason, Stage, TenantId
from filmgate.providers.base import InvocationState, ManagedTask, Provider, Rendition
from filmgate.providers.invocations import RecordState, SqlInvocations
from filmgate.providers.managed.download import Courier
from filmgate.providers.managed.guarded import Guard
from filmgate.settings import FallbackSettings
from filmgate.store.base import ObjectStore
from filmgate.telemetry.logs import Log
from filmgate.worker.attempt import find_source
from filmgate.worker.failures import Drained, judge
from filmgate.worker.publisher import Publisher

_HUNDRED = 100
_NEARLY = 0.95
_BACKOFF_SECONDS = (0.5, 30.0)
_FIRST_LOOK_SECONDS = 1.0
_NEVER = (ProviderRefused, ProviderUnusable, ProviderCannot)


@dataclass(frozen=True, slots=True)
class Parts:
    """What every errand of a process shares."""

    provider: Provider
    invocations: SqlInvocations
    guard: Guard
    store: ObjectStore
    publisher: Publisher
    courier: Courier
    policy_of: Callable[[TenantId], ManagedPolicy]
    send_home: Callable[[Lease, str, RouteReason], Job]
    settings: FallbackSettings


class Errand:
    """A leased job on its way through the provider. Steps run one at a time, on whichever thread is free."""

    def __init__(self, lease: Lease, parts: Parts, log: Log) -> None:
        self.lease = lease
        self._parts = parts
        self._log = log
        self._rendition: Rendition | None = None
        self._invocation_id: InvocationId | None = None
        self._started_at = time.time()
        self._patience_ends = time.monotonic() + parts.settings.patience_seconds
        self._failures = 0
        self._fraction = 0.0
        self._told_fraction: float | None = None
        self._has_asked = False
        self._is_ambiguous = False
        self._stage: Stage | None = None
        self._end: Exception | None = None

    def stop(self, end: Exception) -> None:
        """Let the next step, or the download that runs, end with this. The first reason stays."""
        if self._end is None:
            self._end = end

    @property
    def is_stopping(self) -> bool:
        return self._end is not None

    def check(self) -> None:
        if self._end is not None:
            raise self._end

    def progress(self) -> Progress | None:
        """What a client may see: the provider's own fraction, or the time that has passed of the expected."""
        if self._stage is None:
            return None
        if self._told_fraction is None:
            guess = (time.time() - self._started_at) / max(self._expected_seconds, 1.0)
            self._fraction = max(self._fraction, min(guess, 1.0) * _NEARLY)
        return Progress(self._stage, max(int(self._fraction * _HUNDRED), 1), _HUNDRED, self._fraction)

    def opening(self) -> Progress | None:
        """The first word of a job that runs elsewhere; None until it does."""
        return Progress(self._stage, 0, _HUNDRED, self._fraction) if self._stage is not None else None

    @property
    def _expected_seconds(self) -> float:
        offer = self._rendition.offer if self._rendition is not None else None
        return offer.expected_seconds if offer is not None else self._parts.settings.expected_seconds

    def step(self) -> float | None:
        """Do what is due: seconds until the next step, or None when this process is done with the job."""
        try:
            self.check()
            seconds = self._begin() if self._invocation_id is None else self._look()
        except (QueueUnavailable, ProviderError) as exc:
            return self._back_off(exc)
        except Exception as exc:  # noqa: BLE001 - the job's edge: every failure ends this attempt, no other
            self._give_up(exc)
            return None
        self._failures = 0
        return seconds

    def hand_back(self) -> None:
        """Return the job to the queue as it is; the provider goes on, and so does the next worker."""
        if self._end is not None:
            self._give_up(self._end)

    def _begin(self) -> float | None:
        """Go on with what an earlier worker started, or start: intent, start and id, each durable in turn."""
        parts = self._parts
        record = parts.invocations.find(self.lease.job.id)
        if record is None or record.invocation_id is None:
            self._invocation_id = self._start()
            pause = self._pause(min(_FIRST_LOOK_SECONDS, parts.settings.poll_seconds))
        elif record.state is RecordState.OPEN and record.provider == parts.provider.name:
            self._invocation_id, self._started_at = record.invocation_id, record.started_at
            self._log.info("the wait at the provider goes on")
            pause = 0.0
        else:
            # Left open at a provider we no longer have, or failed there: in both cases no longer waited for.
            self._fail_there(f"the job was at {record.provider} before")
            return None
        self._stage = Stage.DENOISE
        return pause

    def _start(self) -> InvocationId:
        job, parts = self.lease.job, self._parts
        rendition = self._rendition or parts.provider.adapt(job.spec, parts.policy_of(job.tenant_id))
        self._rendition = rendition
        routing = replace(
            job.routing,
            provider=parts.provider.name,
            offer=rendition.offer.model,
            changes=rendition.changes,
            usd=rendition.usd,
        )
        record = parts.invocations.begin(self.lease, parts.provider.name, routing)
        self._started_at = record.started_at
        task = ManagedTask(job.id, record.token, rendition, find_source(parts.store, job))
        self._has_asked = True
        invocation_id = parts.guard.start(lambda: parts.provider.start(task), is_retry=self._failures > 0)
        parts.invocations.note(job.id, invocation_id)
        self._log.info("started at the provider", model=rendition.offer.model)
        return invocation_id

    def _look(self) -> float | None:
        assert self._invocation_id is not None
        invocation_id = self._invocation_id
        invocation = self._parts.guard.look(lambda: self._parts.provider.poll(invocation_id))
        if invocation.state is InvocationState.COMPLETED:
            self._deliver(invocation_id)
            return None
        if invocation.state is InvocationState.FAILED:
            self._fail_there(invocation.message)
            return None
        if time.time() - self._started_at > self._parts.settings.limit_seconds:
            self._parts.provider.cancel(invocation_id)
            self._fail_there(f"not finished within {self._parts.settings.limit_seconds:g} seconds")
            return None
        self._told_fraction = invocation.fraction
        self._fraction = max(self._fraction, min(invocation.fraction or 0.0, _NEARLY))
        return self._pause(invocation.poll_after_seconds)

    def _deliver(self, invocation_id: InvocationId) -> None:
        """The clip into the tenant's store, word to the queue, then nothing is left at the provider."""
        parts = self._parts
        self._stage, self._fraction = Stage.UPLOAD, max(self._fraction, _NEARLY)
        finish = parts.courier.deliver(self.lease, invocation_id, self.check)
        parts.publisher.acknowledge(self.lease, finish, self._log)
        try:
            parts.provider.discard(invocation_id)
            parts.invocations.settle(self.lease.job.id, RecordState.CLOSED)
            parts.guard.observe(time.time() - self._started_at, self._expected_seconds)
        except (ProviderError, QueueUnavailable) as exc:
            # The job is done; the sweep of leftovers tries again.
            self._log.warning("the provider keeps its copy for now", code=exc.code)

    def _fail_there(self, words: str) -> None:
        self._parts.invocations.fail(self.lease)
        self._go_home(words, RouteReason.RETURNED)

    def _pause(self, asked: float | None) -> float:
        seconds = self._parts.settings.poll_seconds if asked is None else asked
        return min(max(seconds, 0.02), 60.0) * random.uniform(0.9, 1.1)  # noqa: S311 - spreads calls

    def _back_off(self, error: FilmgateError) -> float | None:
        """Try again later; a start that keeps failing goes home, a wait that was paid for goes on."""
        self._failures += 1
        # No answer is no refusal: it may have begun over there, and the same token will tell.
        self._is_ambiguous |= self._has_asked and type(error) is ProviderError
        self._log.warning("the provider's turn is put off", code=error.code, attempt=self._failures)
        try:
            if self._invocation_id is None and self._is_start_hopeless(error):
                self._parts.invocations.withdraw(self.lease)
                is_for_good = isinstance(error, _NEVER)
                reason = RouteReason.RETURNED if is_for_good else RouteReason.PROVIDER_UNHEALTHY
                self._go_home(str(error), reason)
                return None
            if self._is_wait_over(error):
                self._fail_there(str(error))
                return None
        except QueueUnavailable as exc:
            self._log.warning("the queue cannot be told yet", code=exc.code)
        except LeaseLost as exc:
            self._give_up(exc)
            return None
        first, longest = _BACKOFF_SECONDS
        seconds = min(first * 2.0 ** min(self._failures - 1, 10), longest)
        told = error.retry_after_seconds if isinstance(error, ProviderThrottled) else None
        # Jitter above a floor: those who were refused together do not come back together.
        return max(min(told or 0.0, longest), seconds * random.uniform(0.5, 1.0))  # noqa: S311

    def _is_start_hopeless(self, error: FilmgateError) -> bool:
        if isinstance(error, QueueUnavailable):
            return False
        is_late = time.monotonic() > self._patience_ends
        if isinstance(error, _NEVER) or is_late:
            return True
        # A job that was refused as the probe has done its part: another may be the next one.
        is_refused = isinstance(error, ProviderThrottled) and not self._is_ambiguous
        return is_refused and self._parts.guard.is_shut()

    def _is_wait_over(self, error: FilmgateError) -> bool:
        is_late = time.time() - self._started_at > self._parts.settings.limit_seconds
        return self._invocation_id is not None and (isinstance(error, ProviderRefused) or is_late)

    def _go_home(self, words: str, reason: RouteReason) -> None:
        job = self._parts.send_home(self.lease, words, reason)
        self._log.warning("the job leaves the provider", state=job.state, route=job.route)

    def _give_up(self, error: Exception) -> None:
        if isinstance(error, Cancelled) and self._invocation_id is not None:
            self._cancel_there(self._invocation_id)
        try:
            if isinstance(error, LeaseLost):
                raise error
            setback = judge(error)
            ended = self._parts.publisher.fail_attempt(self.lease, setback)
            if isinstance(error, Drained):
                self._log.info("handed back", state=ended.state)
                return
            self._log.error("attempt failed", error=error, reason=setback.failure.reason, state=ended.state)
        except LeaseLost:
            self._log.warning("the job has another worker; what this one made is thrown away")
            self._parts.publisher.discard(self.lease)

    def _cancel_there(self, invocation_id: InvocationId) -> None:
        try:
            self._parts.provider.cancel(invocation_id)
        except ProviderError as exc:
            self._log.warning(
                "the provider did not cancel; its clip is removed when it is there", code=exc.code
            )
