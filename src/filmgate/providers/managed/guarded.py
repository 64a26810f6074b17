"""Provider calls under the circuit breaker: a start needs a permit and is recorded; polls are sampled."""

import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from filmgate.errors import (
    ProviderCannot,
    ProviderError,
    ProviderThrottled,
    ProviderUnusable,
    QueueUnavailable,
)
from filmgate.providers.breaker import Breaker
from filmgate.providers.circuit import Outcome, Permit, Phase
from filmgate.telemetry.logs import Log

log = Log("breaker")

_T = TypeVar("_T")
# One poll is recorded per period: hundreds of waiting jobs report the same.
_SAMPLE_SECONDS = 1.0


class BreakerOpen(ProviderThrottled):
    """The breaker is open; the provider was not called."""


class GuardedProvider:
    """Calls of one provider, shared by all jobs of a process."""

    def __init__(self, breaker: Breaker, clock: Callable[[], float] = time.monotonic) -> None:
        self._breaker = breaker
        self._clock = clock
        self._sampled_at = float("-inf")

    def start(self, call: Callable[[], _T], *, is_retry: bool) -> _T:
        """Make the call if the breaker permits it. Raises BreakerOpen and the errors of the call."""
        permit = self._breaker.admit(is_retry=is_retry)
        if permit is None:
            if self.is_open():
                raise BreakerOpen("the provider's breaker is open")
            raise ProviderThrottled("the retry budget is used up")
        began = self._clock()
        try:
            answer = call()
        except BaseException as exc:
            # ProviderCannot is a local check that failed: the provider was not called.
            if isinstance(exc, ProviderError) and not isinstance(exc, ProviderCannot):
                self._record(exc, began, permit)
            else:
                _write(partial(self._breaker.release, permit))
            raise
        self._record(None, began, permit)
        return answer

    def is_open(self) -> bool:
        """Whether the breaker is open or half-open."""
        return self._breaker.health().phase is not Phase.CLOSED

    def poll(self, call: Callable[[], _T]) -> _T:
        """Make a call for a job that was started. It needs no permit."""
        began = self._clock()
        # Chosen before the result is known: if failures had a better chance, a few would open the breaker.
        is_sampled = began - self._sampled_at >= _SAMPLE_SECONDS
        if is_sampled:
            self._sampled_at = began
        try:
            answer = call()
        except ProviderError as exc:
            if is_sampled or isinstance(exc, ProviderUnusable):
                self._record(exc, began, Permit())
            raise
        if is_sampled:
            self._record(None, began, Permit())
        return answer

    def observe(self, seconds: float, expected_seconds: float) -> None:
        """Record the real and the expected duration of a clip."""
        self._breaker.observe(seconds, expected_seconds)

    def _record(self, error: ProviderError | None, began: float, permit: Permit) -> None:
        outcome = Outcome.of(error, self._clock() - began)
        _write(partial(self._breaker.record, outcome, permit))


def _write(change: Callable[[], None]) -> None:
    """Change the breaker. A database outage must not replace the provider's answer: it may be paid for."""
    try:
        change()
    except QueueUnavailable as exc:
        log.warning("could not record the result of a provider call", code=exc.code)
