"""The cost of a fleet as it is bought, and the volume at which it is cheaper than a managed API."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from filmgate.catalog.instances import Price
from filmgate.planner.fleet.sizing import Fleet
from filmgate.planner.fleet.traffic import Traffic

DAYS_PER_MONTH = 365 / 12
HOURS_PER_MONTH = 730
MAX_CLIPS_PER_DAY = 10_000_000.0
INTERRUPTIONS_PER_DAY = 1.0  # of each spot machine; no rate is published per instance type
YEARS = (1, 3)


@dataclass(frozen=True, slots=True)
class Terms:
    """How machines may be bought. `interruptible_share` of them may be spot instances.

    `commit_discount` replaces the catalog's rate of a Savings Plan of `commit_years`.
    """

    commit_discount: float | None = None
    interruptible_share: float = 0.0
    commit_years: int = 1
    interruptions_per_day: float = INTERRUPTIONS_PER_DAY

    def committed_rate(self, price: Price) -> float | None:
        """USD per hour of a Compute Savings Plan; None where neither catalog nor question has a rate."""
        if self.commit_discount is not None:
            return (price.on_demand or 0.0) * (1 - self.commit_discount)
        return savings_rate(price, self.commit_years)


ON_DEMAND = Terms()


def savings_rate(price: Price, years: int) -> float | None:
    """The catalog's rate of a Compute Savings Plan of this many years."""
    return {1: price.savings_1y, 3: price.savings_3y}.get(years)


@dataclass(frozen=True, slots=True)
class Purchase:
    """A part of the fleet, how to buy it, and what it costs."""

    how: str
    instances: int
    usd_per_hour: float
    note: str
    hours_per_day: float = 24.0

    @property
    def usd_per_day(self) -> float:
        return self.instances * self.hours_per_day * self.usd_per_hour


@dataclass(frozen=True, slots=True)
class Bill:
    """The cost of a fleet per day, by purchase."""

    purchases: tuple[Purchase, ...]
    idle_usd_per_day: float
    warm_usd_per_day: float

    @property
    def usd_per_day(self) -> float:
        return sum(part.usd_per_day for part in self.purchases)

    @property
    def instance_hours(self) -> float:
        return sum(part.instances * part.hours_per_day for part in self.purchases)

    @property
    def usd_per_month(self) -> float:
        return self.usd_per_day * DAYS_PER_MONTH

    def usd_per_unit(self, units_per_day: float) -> float:
        return self.usd_per_day / units_per_day if units_per_day else 0.0


def bill(
    fleet: Fleet, traffic: Traffic, price: Price, terms: Terms, *, service: float, start_seconds: float = 0.0
) -> Bill:
    """The bill of a day: all machines in the busy hours, warm ones in the others; or simulated hours."""
    parts = tuple(purchase_mix(fleet, traffic, price, terms, service + start_seconds))
    usd = sum(part.usd_per_day for part in parts)
    hours = sum(part.instances * part.hours_per_day for part in parts)
    busy_hours = traffic.per_day * service / 3600 * fleet.instances / fleet.replicas
    warm = fleet.warm_instances * 24 * usd / hours if hours else 0.0
    return Bill(parts, max(0.0, usd * (1 - busy_hours / hours)) if hours else 0.0, warm)


def purchase_mix(
    fleet: Fleet, traffic: Traffic, price: Price, terms: Terms, redo_seconds: float
) -> list[Purchase]:
    """Commitments where a machine runs long enough to pay for one, spot for interruptible work if cheaper.

    Each interruption of a spot machine costs `redo_seconds`: a start and the work since the last checkpoint.
    A fleet that scales to zero is on demand: a commitment is paid around the clock, and an interrupted clip
    would wait for a second start.
    """
    parts = ((fleet.instances - fleet.warm_instances, traffic.busy_hours), (fleet.warm_instances, 24.0))
    if fleet.machine_hours is not None:
        note = "runs while clips wait; nothing to commit"
        hours = fleet.machine_hours / fleet.instances
        return [Purchase("on demand", fleet.instances, price.on_demand or 0.0, note, hours)]
    may_be_spot = spot_machines(fleet, price, terms)
    mix = []
    for instances, hours in parts:
        bought, spot = _bought(hours, price, terms), _spot(hours, price, terms, redo_seconds)
        count = min(may_be_spot, instances) if spot.usd_per_day < bought.usd_per_day else 0
        may_be_spot -= count
        mix += [replace(bought, instances=instances - count), replace(spot, instances=count)]
    return [part for part in mix if part.instances]


def spot_machines(fleet: Fleet, price: Price, terms: Terms) -> int:
    """Whole machines that may be spot instances."""
    if fleet.is_scaled or not price.spot_median:
        return 0
    return int(fleet.instances * terms.interruptible_share + 1e-9)


def _bought(hours: float, price: Price, terms: Terms) -> Purchase:
    """One machine, committed where paying for 24 hours at that rate is cheaper than `hours` on demand."""
    on_demand, rate = price.on_demand or 0.0, terms.committed_rate(price)
    when = "runs all day" if hours >= 24 else f"runs {hours:.3g} hours a day"
    if rate is not None and 24 * rate < hours * on_demand:
        plan = f"Compute Savings Plan, {terms.commit_years} year{'s' if terms.commit_years > 1 else ''}"
        origin = "the catalog's rate" if terms.commit_discount is None else "your rate, not a published one"
        return Purchase("committed", 1, rate, f"{when}; {plan}, {1 - rate / on_demand:.0%} off; {origin}")
    return Purchase("on demand", 1, on_demand, when, hours)


def _spot(hours: float, price: Price, terms: Terms, redo_seconds: float) -> Purchase:
    again = terms.interruptions_per_day * redo_seconds / 3600 * hours / 24
    spread = f"spot {price.spot_min or 0:.2f} to {price.spot_max or 0:.2f} over {price.zones or '?'} zones"
    note = f"{spread}; {again:.2g} h a day repeat interrupted work; clips checkpoint their latents"
    return Purchase("spot", 1, price.spot_median or 0.0, note, min(24.0, hours + again))


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
