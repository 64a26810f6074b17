"""What a fleet costs, bought how; where a managed API is cheaper; what the bill does as volume grows."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from filmgate.catalog.instances import Price
from filmgate.planner.fleet.sizing import Fleet
from filmgate.planner.fleet.traffic import Traffic

DAYS_A_MONTH = 365 / 12
MOST_CLIPS = 10_000_000.0
COOLDOWN_SECONDS = 300.0  # KEDA's default before it scales to zero


@dataclass(frozen=True, slots=True)
class Bill:
    """A day's cost of a fleet, what of it is idle, and the share of arrivals that find no replica up."""

    usd_per_day: float
    instance_hours: float
    idle_usd_per_day: float
    warm_usd_per_day: float
    cold_share: float

    @property
    def usd_per_month(self) -> float:
        return self.usd_per_day * DAYS_A_MONTH

    def per(self, amount: float) -> float:
        """USD for one of `amount` things made a day."""
        return self.usd_per_day / amount if amount else 0.0


def bill(
    fleet: Fleet, traffic: Traffic, usd_per_hour: float, *, service: float, cold_seconds: float | None
) -> Bill:
    """Instance-hours of a day: the full fleet in busy hours, the warm part outside them.

    With `cold_seconds` the fleet may scale to zero, and does where that is cheaper.
    """
    hours = fleet.instances * traffic.busy_hours + fleet.warm_instances * (24 - traffic.busy_hours)
    warm, cold_share = fleet.warm_instances, 0.0
    if cold_seconds is not None and lazy_hours(fleet, traffic, service, cold_seconds) < hours:
        hours, warm = lazy_hours(fleet, traffic, service, cold_seconds), 0
        cold_share = leaving_share(traffic)
    usd = hours * usd_per_hour
    busy_hours = traffic.per_day * service / 3600 * fleet.instances / fleet.replicas
    return Bill(
        usd_per_day=usd,
        instance_hours=hours,
        idle_usd_per_day=max(0.0, usd - busy_hours * usd_per_hour),
        warm_usd_per_day=warm * 24 * usd_per_hour,
        cold_share=cold_share,
    )


def leaving_share(traffic: Traffic) -> float:
    """Chance that no work comes within the cooldown, so that the replica leaves."""
    return math.exp(-traffic.per_day / traffic.bunch / (traffic.busy_hours * 3600) * COOLDOWN_SECONDS)


def lazy_hours(fleet: Fleet, traffic: Traffic, service: float, cold_seconds: float) -> float:
    """Hours paid a day when a replica leaves after COOLDOWN_SECONDS without work.

    After each arrival one instance idles until the next or until it leaves; if it leaves, the next arrival
    pays for a start.
    """
    work = traffic.per_day * service * fleet.instances / fleet.replicas
    arrivals = traffic.per_day / traffic.bunch
    rate = arrivals / (traffic.busy_hours * 3600)
    leaves = leaving_share(traffic)
    idle = (1 - leaves) / rate if rate else 0.0
    return (work + arrivals * (idle + leaves * cold_seconds)) / 3600


@dataclass(frozen=True, slots=True)
class Purchase:
    """One slice of the fleet and how to buy it."""

    how: str
    instances: int
    usd_per_hour: float
    note: str


def purchase_mix(
    fleet: Fleet, price: Price, *, commit_discount: float | None, interruptible_share: float
) -> list[Purchase]:
    """Commit what never sleeps, rent the daily swell on demand, put interruptible work on spot."""
    on_demand = price.on_demand or 0.0
    baseline = fleet.warm_instances
    swell = fleet.instances - baseline
    spot = round(fleet.instances * interruptible_share) if price.spot_median else 0
    spot = min(spot, fleet.instances)
    taken = min(spot, swell)
    swell -= taken
    baseline -= spot - taken
    committed = on_demand * (1 - (commit_discount or 0.0))
    basis = (
        f"{commit_discount:.0%} off, as given"
        if commit_discount is not None
        else "priced on demand: no plan rate is in the catalog; give --commit-discount"
    )
    mix = [
        Purchase("committed", baseline, committed, f"up around the clock; {basis}"),
        Purchase("on demand", swell, on_demand, "up in the busy hours only"),
    ]
    if spot:
        spread = f"spot {price.spot_min:.2f} to {price.spot_max:.2f} over {price.zones or '?'} zones"
        mix.append(
            Purchase("spot", spot, price.spot_median or 0.0, f"{spread}; work that checkpoints its latents")
        )
    return [slice_ for slice_ in mix if slice_.instances]


def break_even(daily_cost: Callable[[float], float | None], managed_usd: float) -> float | None:
    """Clips a day above which the own fleet is cheaper than `managed_usd` a clip; None if never in reason."""
    low, high = 0.0, 1.0
    while not _is_cheaper(daily_cost, managed_usd, high):
        low, high = high, high * 2
        if high > MOST_CLIPS:
            return None
    while high - low > max(0.5, 0.005 * high):
        middle = (low + high) / 2
        low, high = (low, middle) if _is_cheaper(daily_cost, managed_usd, middle) else (middle, high)
    return high


def _is_cheaper(daily_cost: Callable[[float], float | None], managed_usd: float, clips: float) -> bool:
    cost = daily_cost(clips)
    return cost is not None and cost <= clips * managed_usd
