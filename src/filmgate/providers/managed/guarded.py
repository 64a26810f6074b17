"""Calls to the provider under its breaker: leave is asked before a start, and every outcome is told."""

import time
from collections.abc import Callable
from typing import TypeVar

from filmgate.errors import ProviderCannot, ProviderError, ProviderThrottled
from filmgate.providers.breaker import Breaker
from filmgate.providers.circuit import Outcome, Permit, Phase

_T = TypeVar("_T")
# Good news is told this often at most: hundreds of waiting jobs say the same.
_NEWS_SECONDS = 1.0


class BreakerOpen(ProviderThrottled):
    """Nobody was asked: the breaker lets nothing through."""


class Guard:
    """One for all errands of a process."""

    def __init__(self, breaker: Breaker, clock: Callable[[], float] = time.monotonic) -> None:
        self._breaker = breaker
        self._clock = clock
        self._told_at = float("-inf")

    def start(self, call: Callable[[], _T], *, is_retry: bool) -> _T:
        """Make the call if it may be made. Raises BreakerOpen, and whatever the call raises."""
        permit = self._breaker.admit(is_retry=is_retry)
        if permit is None and not self.is_shut():
            raise ProviderThrottled("the budget for retries is spent")
        if permit is None:
            raise BreakerOpen("the provider is left alone for a while")
        began = self._clock()
        try:
            answer = call()
        except ProviderCannot:
            self._breaker.release(permit)  # found out here; nobody was called
            raise
        except ProviderError as exc:
            self._breaker.record(Outcome.of(exc, self._clock() - began), permit)
            raise
        except BaseException:
            self._breaker.release(permit)
            raise
        self._breaker.record(Outcome.of(None, self._clock() - began), permit)
        return answer

    def is_shut(self) -> bool:
        """The breaker is not closed: waiting here for a turn is no better than waiting at home."""
        return self._breaker.health().phase is not Phase.CLOSED

    def look(self, call: Callable[[], _T]) -> _T:
        """Make a call for a job that is already over there: it needs no leave, and tells as much."""
        began = self._clock()
        try:
            answer = call()
        except ProviderError as exc:
            self._breaker.record(Outcome.of(exc, self._clock() - began), Permit())
            raise
        now = self._clock()
        if now - self._told_at >= _NEWS_SECONDS:
            self._told_at = now
            self._breaker.record(Outcome.of(None, now - began), Permit())
        return answer

    def observe(self, seconds: float, expected_seconds: float) -> None:
        """A clip was finished in this many seconds; its offer had said that many."""
        self._breaker.observe(seconds, expected_seconds)
