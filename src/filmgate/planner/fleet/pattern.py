"""Always warm, scale to zero, many adapters on one base, or managed: latency, shape and volume decide."""

from dataclasses import dataclass
from enum import StrEnum


class Pattern(StrEnum):
    """How the service is run."""

    WARM = "always warm"
    QUEUE = "queue with scale to zero"
    ADAPTERS = "many adapters on one base"
    MANAGED = "managed API"


@dataclass(frozen=True, slots=True)
class Situation:
    """What the choice depends on."""

    slo_seconds: float | None
    service_seconds: float
    cold_seconds: float
    utilisation: float
    own_usd_per_clip: float | None
    managed_usd_per_clip: float | None
    adapters: int


@dataclass(frozen=True, slots=True)
class Choice:
    """A pattern and the reasons for it, in order."""

    pattern: Pattern
    reasons: tuple[str, ...]


def choose(now: Situation) -> Choice:
    """The pattern, with the comparison that decided each step."""
    reasons = []
    own, managed = now.own_usd_per_clip, now.managed_usd_per_clip
    if own is not None and managed is not None:
        reasons.append(f"an own clip costs ${own:.3g}, a managed one ${managed:.2f}")
        if managed < own:
            return Choice(Pattern.MANAGED, tuple(reasons))
    cold_total = now.cold_seconds + now.service_seconds
    if now.slo_seconds is not None and cold_total > now.slo_seconds:
        reasons.append(
            f"a cold replica answers after {cold_total:.0f} s, the SLO is {now.slo_seconds:.0f} s: wait warm"
        )
        if now.adapters > 1:
            reasons.append(f"{now.adapters} adapters share the base weights instead of a fleet each")
            return Choice(Pattern.ADAPTERS, tuple(reasons))
        return Choice(Pattern.WARM, tuple(reasons))
    if now.utilisation >= 0.6:
        reasons.append(f"the fleet is {now.utilisation:.0%} busy: scaling to zero would save little")
        return Choice(Pattern.WARM, tuple(reasons))
    target = (
        "there is no latency target"
        if now.slo_seconds is None
        else f"even a cold start meets {now.slo_seconds:.0f} s"
    )
    reasons.append(f"{target} and the fleet is {now.utilisation:.0%} busy: pay for work, not for waiting")
    return Choice(Pattern.QUEUE, tuple(reasons))
