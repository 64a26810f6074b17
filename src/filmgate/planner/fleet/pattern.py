"""The serving pattern: always warm, scale to zero, several adapters on one base, or a managed API."""

from dataclasses import dataclass
from enum import StrEnum

HIGH_UTILISATION = 0.6


class Pattern(StrEnum):
    """How the service runs."""

    WARM = "always warm"
    QUEUE = "queue with scale to zero"
    ADAPTERS = "many adapters on one base"
    MANAGED = "managed API"


@dataclass(frozen=True, slots=True)
class Situation:
    """The figures that the choice depends on."""

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
    """The pattern, with the comparisons that led to it."""
    reasons = []
    own, managed = now.own_usd_per_clip, now.managed_usd_per_clip
    if own is not None and managed is not None:
        reasons.append(f"a clip costs ${own:.3g} on your own fleet and ${managed:.2f} at a managed API")
        if managed < own:
            return Choice(Pattern.MANAGED, tuple(reasons))
    cold_total = now.cold_seconds + now.service_seconds
    if now.slo_seconds is not None and cold_total > now.slo_seconds:
        reasons.append(
            f"a cold replica takes {cold_total:.0f} s for its first clip and the SLO is "
            f"{now.slo_seconds:.0f} s: keep replicas warm"
        )
        if now.adapters > 1:
            reasons.append(f"{now.adapters} adapters share the base weights, so they need one fleet")
            return Choice(Pattern.ADAPTERS, tuple(reasons))
        return Choice(Pattern.WARM, tuple(reasons))
    if now.utilisation >= HIGH_UTILISATION:
        reasons.append(f"the fleet is {now.utilisation:.0%} busy: scaling to zero would save little")
        return Choice(Pattern.WARM, tuple(reasons))
    target = (
        "there is no latency target"
        if now.slo_seconds is None
        else f"a cold start meets the SLO of {now.slo_seconds:.0f} s"
    )
    reasons.append(f"{target} and the fleet is {now.utilisation:.0%} busy: scaling to zero saves idle hours")
    return Choice(Pattern.QUEUE, tuple(reasons))
