"""The circuit breaker of one provider as a value: what it has seen, and what follows from that.

Closed: calls go through, the last ten outcomes are remembered. Open: nothing goes through until a jittered
time is over, longer after each failed probe. Half-open: one probe is out and decides. A retry also needs a
token, and only first tries earn tokens: an outage is never answered with more calls than there were before.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from filmgate.errors import ProviderError, ProviderRefused, ProviderThrottled, ProviderUnusable
from filmgate.settings import RoutingSettings

Chance = Callable[[], float]

WINDOW = 10
_STALE_SECONDS = 120.0
_RETRY_BURST = 3.0
# How far one finished clip moves the pace, and how far off a provider's own figure is believed to be.
_PACE_WEIGHT = 0.2
_PACE_BOUNDS = (0.1, 20.0)


class Phase(StrEnum):
    """What the breaker lets through: everything, nothing, one probe."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Signal(StrEnum):
    """How a call to the provider ended."""

    ANSWERED = "answered"  # it did what was asked, or said why it never will: it is well
    THROTTLED = "throttled"  # a rate limit or a quota
    FAILED = "failed"  # 5xx, a broken connection
    TIMED_OUT = "timed_out"
    UNUSABLE = "unusable"  # no permission, no such model: trying again soon is pointless


@dataclass(frozen=True, slots=True)
class Outcome:
    """One call to the provider, as the breaker needs it."""

    signal: Signal
    seconds: float = 0.0

    @classmethod
    def of(cls, error: Exception | None, seconds: float) -> "Outcome":
        """The outcome of a call that raised this, or nothing."""
        match error:
            case None | ProviderRefused():
                return cls(Signal.ANSWERED, seconds)
            case ProviderThrottled():
                return cls(Signal.THROTTLED, seconds)
            case ProviderUnusable():
                return cls(Signal.UNUSABLE, seconds)
            case TimeoutError():
                return cls(Signal.TIMED_OUT, seconds)
            case ProviderError() if isinstance(error.__cause__, TimeoutError):
                return cls(Signal.TIMED_OUT, seconds)
            case _:
                return cls(Signal.FAILED, seconds)


@dataclass(frozen=True, slots=True)
class Permit:
    """Leave to make one call; `probe` numbers it when everything depends on how it ends."""

    probe: int | None = None


@dataclass(frozen=True, slots=True)
class Health:
    """A provider's health as routing reads it; `can_probe` while it is not closed: one job may try it."""

    phase: Phase = Phase.CLOSED
    can_probe: bool = False
    pace: float = 1.0


@dataclass(frozen=True, slots=True)
class Circuit:
    """All that is known about a provider's health. Times are on the clock the caller passes in."""

    phase: Phase = Phase.CLOSED
    recent: str = ""  # the last outcomes, oldest first: "." good, "x" bad
    recent_at: float = 0.0
    openings: int = 0  # in a row, without a good probe between
    retry_at: float = 0.0
    probe: int = 0
    probe_ends_at: float = 0.0
    retry_tokens: float = _RETRY_BURST
    pace: float = 1.0  # how long it really takes, over how long its offer says

    def is_probe_due(self, now: float, settings: RoutingSettings) -> bool:
        """The wait is over, or the process that held the probe is gone. A clock that started again (a
        reboot) leaves times in the far future: those count as over too.
        """
        if self.phase is Phase.CLOSED:
            return False
        ends_at = self.retry_at if self.phase is Phase.OPEN else self.probe_ends_at
        longest = max(settings.max_open_seconds, settings.probe_seconds)
        return now >= ends_at or ends_at - now > 2 * longest

    def admit(
        self, now: float, settings: RoutingSettings, *, is_retry: bool = False
    ) -> tuple["Circuit", Permit | None]:
        """May one call be made now? The probe costs no token: there is only one of it."""
        if self.phase is not Phase.CLOSED:
            if not self.is_probe_due(now, settings):
                return self, None
            probe = self.probe + 1
            ends_at = now + settings.probe_seconds
            probing = replace(self, phase=Phase.HALF_OPEN, probe=probe, probe_ends_at=ends_at)
            return probing, Permit(probe)
        if is_retry:
            if self.retry_tokens < 1.0:
                return self, None
            return replace(self, retry_tokens=self.retry_tokens - 1.0), Permit()
        tokens = min(self.retry_tokens + settings.retry_share, _RETRY_BURST)
        return replace(self, retry_tokens=tokens), Permit()

    def release(self, permit: Permit, now: float) -> "Circuit":
        """The call was not made after all: another may probe at once."""
        if self.phase is Phase.HALF_OPEN and permit.probe == self.probe:
            return replace(self, phase=Phase.OPEN, retry_at=now)
        return self

    def record(
        self, outcome: Outcome, permit: Permit, now: float, settings: RoutingSettings, chance: float
    ) -> "Circuit":
        """What this outcome changes; `chance` (0 to 1) spreads the return over time.

        While it is not closed only the probe's outcome counts: an answer to an old call proves nothing.
        """
        is_good = outcome.signal is Signal.ANSWERED and outcome.seconds <= settings.slow_seconds
        if self.phase is Phase.HALF_OPEN and permit.probe == self.probe:
            if is_good:
                return replace(self, phase=Phase.CLOSED, openings=0, recent=".", recent_at=now)
            return self._opened(now, settings, chance)
        if self.phase is not Phase.CLOSED:
            return self
        kept = self.recent if now - self.recent_at <= _STALE_SECONDS else ""
        recent = (kept + (".x"[not is_good]))[-WINDOW:]
        is_over = recent.count("x") >= settings.failures_to_open or outcome.signal is Signal.UNUSABLE
        if is_over and not is_good:
            return self._opened(now, settings, chance)
        return replace(self, recent=recent, recent_at=now)

    def observe(self, seconds: float, expected_seconds: float) -> "Circuit":
        """Learn from a finished clip how long this provider really takes."""
        if expected_seconds <= 0:
            return self
        low, high = _PACE_BOUNDS
        seen = min(max(seconds / expected_seconds, low), high)
        return replace(self, pace=self.pace + _PACE_WEIGHT * (seen - self.pace))

    def _opened(self, now: float, settings: RoutingSettings, chance: float) -> "Circuit":
        longest = min(settings.open_seconds * 2.0 ** min(self.openings, 30), settings.max_open_seconds)
        return replace(
            self,
            phase=Phase.OPEN,
            recent="",
            openings=self.openings + 1,
            # Between half and the whole: callers that were refused together do not return together.
            retry_at=now + longest * (0.5 + chance / 2),
        )
