"""The cost of a fleet, how to buy it, and the volume at which it is cheaper than a managed API."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from filmgate.catalog.instances import Price
from filmgate.planner.fleet.sizing import Fleet
from filmgate.planner.fleet.traffic import Traffic

DAYS_PER_MONTH = 365 / 12
HOURS_PER_MONTH = 730
MAX_CLIPS_PER_DAY = 10_000_000.0
COOLDOWN_SECONDS = 300.0  # KEDA's default before it scales to zero


@dataclass(frozen=True, slots=True)
class Bill:
    """The cost of a fleet per day. `cold_share` of the arrivals wait for a cold start."""

    usd_per_day: float
    instance_hours: float
    idle_usd_per_day: float
    warm_usd_per_day: float
    cold_share: float

    @property
    def usd_per_month(self) -> float:
        return self.usd_per_day * DAYS_PER_MONTH

    def usd_per_unit(self, units_per_day: float) -> float:
        return self.usd_per_day / units_per_day if units_per_day else 0.0


def bill(
    fleet: Fleet, traffic: Traffic, usd_per_hour: float, *, service: float, cold_seconds: float | None
) -> Bill:
    """The bill of a day: the full fleet in the busy hours, the warm instances in the others.

    With `cold_seconds` the fleet may scale to zero; it does so where that is cheaper.
    """
    hours = fleet.instances * traffic.busy_hours + fleet.warm_instances * (24 - traffic.busy_hours)
    warm, cold_share = fleet.warm_instances, 0.0
    if cold_seconds is not None and scale_to_zero_hours(fleet, traffic, service, cold_seconds) < hours:
        hours, warm = scale_to_zero_hours(fleet, traffic, service, cold_seconds), 0
        cold_share = scale_down_probability(traffic)
    usd = hours * usd_per_hour
    busy_hours = traffic.per_day * service / 3600 * fleet.instances / fleet.replicas
    return Bill(
        usd_per_day=usd,
        instance_hours=hours,
        idle_usd_per_day=max(0.0, usd - busy_hours * usd_per_hour),
        warm_usd_per_day=warm * 24 * usd_per_hour,
        cold_share=cold_share,
    )


def scale_down_probability(traffic: Traffic) -> float:
    """The probability that no work arrives within the cooldown, so the replica is removed."""
    return math.exp(-traffic.per_day / traffic.batch / (traffic.busy_hours * 3600) * COOLDOWN_SECONDS)


def scale_to_zero_hours(fleet: Fleet, traffic: Traffic, service: float, cold_seconds: float) -> float:
    """Instance-hours per day when a replica is removed after COOLDOWN_SECONDS without work.

    After each arrival one instance idles until the next arrival or until it is removed. If it is removed, the
    next arrival also pays for a start.
    """
    work = traffic.per_day * service * fleet.instances / fleet.replicas
    arrivals = traffic.per_day / traffic.batch
    rate = arrivals / (traffic.busy_hours * 3600)
    removed = scale_down_probability(traffic)
    idle = (1 - removed) / rate if rate else 0.0
    return (work + arrivals * (idle + removed * cold_seconds)) / 3600


@dataclass(frozen=True, slots=True)
class Purchase:
    """A part of the fleet and how to buy it."""

    how: str
    instances: int
    usd_per_hour: float
    note: str


def purchase_mix(
    fleet: Fleet, price: Price, *, commit_discount: float | None, interruptible_share: float
) -> list[Purchase]:
    """Commitments for warm instances, on demand for the busy hours, spot for interruptible work."""
    on_demand = price.on_demand or 0.0
    baseline = fleet.warm_instances
    busy = fleet.instances - baseline
    spot = round(fleet.instances * interruptible_share) if price.spot_median else 0
    spot = min(spot, fleet.instances)
    taken = min(spot, busy)
    busy -= taken
    baseline -= spot - taken
    committed = on_demand * (1 - (commit_discount or 0.0))
    basis = (
        f"{commit_discount:.0%} discount, as given"
        if commit_discount is not None
        else "at the on-demand price: the catalog has no commitment rates; give --commit-discount"
    )
    mix = [
        Purchase("committed", baseline, committed, f"runs all day; {basis}"),
        Purchase("on demand", busy, on_demand, "runs in the busy hours only"),
    ]
    if spot:
        spread = f"spot {price.spot_min:.2f} to {price.spot_max:.2f} over {price.zones or '?'} zones"
        note = f"{spread}; for work that checkpoints its latents"
        mix.append(Purchase("spot", spot, price.spot_median or 0.0, note))
    return [part for part in mix if part.instances]


def break_even(daily_cost: Callable[[float], float | None], managed_usd: float) -> float | None:
    """Clips per day above which the fleet is cheaper than `managed_usd` per clip.

    None if that is above MAX_CLIPS_PER_DAY.
    """
    low, high = 0.0, 1.0
    while not _is_cheaper(daily_cost, managed_usd, high):
        low, high = high, high * 2
        if high > MAX_CLIPS_PER_DAY:
            return None
    while high - low > max(0.5, 0.005 * high):
        middle = (low + high) / 2
        low, high = (low, middle) if _is_cheaper(daily_cost, managed_usd, middle) else (middle, high)
    return high


def _is_cheaper(daily_cost: Callable[[float], float | None], managed_usd: float, clips: float) -> bool:
    cost = daily_cost(clips)
    return cost is not None and cost <= clips * managed_usd
