"""The circuit breaker of one provider as a value.

Closed: calls pass, and the last ten results are kept. Open: no call passes until a delay with jitter is over;
the delay grows with every failed probe. Half-open: the result of one probe closes or opens it. A retry also
needs a token, and only first calls add tokens, so retries do not multiply the calls during an outage.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from filmgate.errors import ProviderRefused, ProviderUnusable
from filmgate.settings import RoutingSettings

Chance = Callable[[], float]

WINDOW = 10
_STALE_SECONDS = 120.0
_RETRY_BURST = 3.0
# How much one finished clip changes the pace, and the limits of the pace.
_PACE_WEIGHT = 0.2
_PACE_BOUNDS = (0.1, 20.0)


class Phase(StrEnum):
    """Which calls pass: all, none, one probe."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Signal(StrEnum):
    """The result of a call to the provider."""

    ANSWERED = "answered"  # success, or a permanent rejection: the provider works
    FAILED = "failed"  # a rate limit, a timeout, 5xx, a broken connection
    UNUSABLE = "unusable"  # no permission, no such model: a retry cannot help soon


@dataclass(frozen=True, slots=True)
class Outcome:
    """One call to the provider: its result and duration."""

    signal: Signal
    seconds: float = 0.0

    @classmethod
    def of(cls, error: Exception | None, seconds: float) -> "Outcome":
        """The outcome of a call that raised this error; None for a success."""
        match error:
            case None | ProviderRefused():
                return cls(Signal.ANSWERED, seconds)
            case ProviderUnusable():
                return cls(Signal.UNUSABLE, seconds)
            case _:
                return cls(Signal.FAILED, seconds)


@dataclass(frozen=True, slots=True)
class Permit:
    """Permission for one call. `probe` is the number of a probe."""

    probe: int | None = None


@dataclass(frozen=True, slots=True)
class BreakerHealth:
    """The breaker as routing reads it. `can_probe`: it is not closed, but a probe may be made now.

    `pace` is the measured duration of clips divided by the duration that the provider states.
    """

    phase: Phase = Phase.CLOSED
    can_probe: bool = False
    pace: float = 1.0


@dataclass(frozen=True, slots=True)
class Circuit:
    """The state of a breaker. Times are on the caller's clock."""

    phase: Phase = Phase.CLOSED
    recent: str = ""  # the last results, oldest first: "." success, "x" failure
    recent_at: float = 0.0
    openings: int = 0  # consecutive, without a successful probe
    retry_at: float = 0.0
    probe: int = 0
    probe_ends_at: float = 0.0
    retry_tokens: float = _RETRY_BURST
    pace: float = 1.0  # measured by stated duration of a clip

    def is_probe_due(self, now: float, settings: RoutingSettings) -> bool:
        """Whether the delay is over or the running probe has timed out.

        A time in the far future was written before a reboot reset the clock: it counts as over.
        """
        if self.phase is Phase.CLOSED:
            return False
        ends_at = self.retry_at if self.phase is Phase.OPEN else self.probe_ends_at
        longest = max(settings.max_open_seconds, settings.probe_seconds)
        return now >= ends_at or ends_at - now > 2 * longest

    def admit(
        self, now: float, settings: RoutingSettings, *, is_retry: bool = False
    ) -> tuple["Circuit", Permit | None]:
        """A permit for one call, or None. A probe uses no token."""
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
        """Return an unused permit: another call may probe immediately."""
        if self.phase is Phase.HALF_OPEN and permit.probe == self.probe:
            return replace(self, phase=Phase.OPEN, retry_at=now)
        return self

    def record(
        self, outcome: Outcome, permit: Permit, now: float, settings: RoutingSettings, chance: float
    ) -> "Circuit":
        """The circuit after this outcome; `chance` (0 to 1) is the jitter of the delay.

        While the circuit is not closed, only the outcome of the probe counts.
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
        """Update the pace with the duration of a finished clip."""
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
            # Jitter between half and the whole delay, so that processes do not retry together.
            retry_at=now + longest * (0.5 + chance / 2),
        )
