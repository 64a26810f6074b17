"""The cost of a fleet by how it is bought, and the volume at which it is cheaper than a managed API."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import ceil, inf, isclose

from filmgate.catalog.instances import Price
from filmgate.planner.fleet.sizing import Fleet
from filmgate.planner.fleet.traffic import SECONDS_PER_DAY, Traffic
from filmgate.planner.report.numbers import counted

DAYS_PER_MONTH = 365 / 12
HOURS_PER_MONTH = 730
VOLUMES = tuple(2 ** (i / 4) for i in range(94))  # clips per day, up to ten million
MAX_LOST_SHARE = 0.05  # of the time of a spot machine; the simulated latency does not include it
YEARS = (1, 3)
NO_RATE = "the catalog has no rate; give --commit-discount, or a --prices file with the rates"
THREE_YEARS = (
    "A commitment of three years outlasts the GPU: G6e (2024) was followed by G7e (2026) with twice the "
    "memory at 0.035 instead of 0.042 USD per GiB and hour. Commit to one year."
)
SAVINGS_PLANS = (
    "Buy a Compute Savings Plan and no Reserved Instances: it also covers the machine and the region of "
    "Plan B, while a reservation stays with one instance family in one region."
)
SCALED = (
    "Commit to nothing and use no spot: a commitment is paid while the fleet is at zero, and a clip on a "
    "reclaimed machine would wait for a second start."
)


@dataclass(frozen=True, slots=True)
class Terms:
    """How machines may be bought. `interruptible_share` of them may be spot instances.

    `commit_discount` replaces the catalog's rate of a Savings Plan of `commit_years`.
    """

    commit_discount: float | None = None
    interruptible_share: float = 0.0
    commit_years: int = 1
    interruptions_per_day: float = 1.0  # of each spot machine; no rate is published per instance type

    def committed_rate(self, price: Price) -> float | None:
        """USD per hour of a Compute Savings Plan; None where neither catalog nor question has a rate."""
        if self.commit_discount is not None:
            return (price.on_demand or 0.0) * (1 - self.commit_discount)
        return savings_rate(price, self.commit_years)


DEFAULT_TERMS = Terms()


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


@dataclass(frozen=True, slots=True)
class Order:
    """A fleet to buy: its traffic, its price, and the seconds of one unit of work and of a start.

    `is_machine_shared` says whether two pools of the fleet may have replicas on one machine.
    """

    fleet: Fleet
    traffic: Traffic
    price: Price
    service: float
    start_seconds: float = 0.0
    is_machine_shared: bool = True

    def bill(self, terms: Terms) -> Bill:
        """The bill of a day: all machines in the busy hours, warm ones in the others; or simulated hours."""
        return self._bill_of(self._purchases(terms, self.spot_machines))

    def all_spot(self, terms: Terms) -> Bill:
        """The bill of a day with as many spot machines as are cheaper, for comparison only."""
        return self._bill_of(self._purchases(terms, lambda most: most))

    def _bill_of(self, parts: Sequence[Purchase]) -> Bill:
        fleet = self.fleet
        usd = sum(part.usd_per_day for part in parts)
        hours = sum(part.instances * part.hours_per_day for part in parts)
        busy_hours = self.traffic.per_day * self.service / 3600 * fleet.instances / fleet.replicas
        warm = fleet.warm_instances * 24 * usd / hours if hours else 0.0
        return Bill(tuple(parts), max(0.0, usd * (1 - busy_hours / hours)) if hours else 0.0, warm)

    def on_demand(self) -> Bill:
        """The bill of a day without commitments and spot."""
        return self.without_savings().bill(DEFAULT_TERMS)

    def without_savings(self) -> "Order":
        """The order at a price for which no Savings Plan is known."""
        return replace(self, price=replace(self.price, savings_1y=None, savings_3y=None))

    def spot_machines(self, most: int) -> int:
        """The most spot machines, up to this many, that are deployed with the same replicas of every pool."""
        counts = range(most, 0, -1)
        return next((n for n in counts if self._can_be_spot(n)), 0)

    def fewest_spot_machines(self) -> int | None:
        """The fewest spot machines that are deployed with the same replicas of every pool, if any are."""
        return next((n for n in range(1, self.fleet.instances) if self._can_be_spot(n)), None)

    def interruptible_machines(self, terms: Terms) -> int:
        """Whole machines that may be spot instances."""
        if self.fleet.is_scaled or not self.price.spot_median:
            return 0
        return int(self.fleet.instances * terms.interruptible_share + 1e-9)

    def _can_be_spot(self, machines: int) -> bool:
        return self.fleet.can_be_spot(machines, is_machine_shared=self.is_machine_shared)

    def lost_share(self, terms: Terms) -> float:
        """The share of a spot machine's time that repeats interrupted work: a start and one unit of work."""
        return terms.interruptions_per_day * (self.service + self.start_seconds) / SECONDS_PER_DAY

    def _purchases(self, terms: Terms, spot_machines: Callable[[int], int]) -> list[Purchase]:
        """Commitments where a machine runs long enough to pay for one, spot where allowed and cheaper.

        Of the machines that are cheaper as spot instances, `spot_machines` says how many are.

        A fleet that scales to zero is on demand: a commitment is paid around the clock, and an interrupted
        clip would wait for a second start.
        """
        fleet, price = self.fleet, self.price
        if fleet.machine_hours is not None:
            note = "runs while clips wait; nothing to commit"
            hours = fleet.machine_hours / fleet.instances
            return [Purchase("on demand", fleet.instances, price.on_demand or 0.0, note, hours)]
        warm, lost = fleet.warm_instances, self.lost_share(terms)
        parts = [
            (instances, _bought(hours, price, terms), _spot(hours, price, lost))
            for instances, hours in ((fleet.instances - warm, self.traffic.busy_hours), (warm, 24.0))
        ]
        cheaper = [n if spot.usd_per_day < bought.usd_per_day else 0 for n, bought, spot in parts]
        left = spot_machines(min(sum(cheaper), self.interruptible_machines(terms)))
        mix = []
        for (instances, bought, spot), most in zip(parts, cheaper, strict=True):
            count = min(left, most)
            left -= count
            mix += [replace(bought, instances=instances - count), replace(spot, instances=count)]
        return [part for part in mix if part.instances]


def _bought(hours: float, price: Price, terms: Terms) -> Purchase:
    """One machine, committed where paying for 24 hours at that rate is cheaper than `hours` on demand."""
    on_demand, rate = price.on_demand or 0.0, terms.committed_rate(price)
    when = "runs all day" if hours >= 24 else f"runs {hours:.3g} hours per day"
    if rate is not None and 24 * rate < hours * on_demand:
        plan = f"Compute Savings Plan, {counted(terms.commit_years, 'year')}"
        origin = "the catalog's rate" if terms.commit_discount is None else "your rate, not a published one"
        return Purchase("committed", 1, rate, f"{when}; {plan}, {1 - rate / on_demand:.0%} off; {origin}")
    return Purchase("on demand", 1, on_demand, when, hours)


def _spot(hours: float, price: Price, lost_share: float) -> Purchase:
    """One machine, with the hours that replace what interruptions cost: they may be those of another one."""
    paid = hours / (1 - lost_share) if lost_share < 1 else inf
    again = paid - hours
    spread = f"spot {price.spot_min or 0:.2f} to {price.spot_max or 0:.2f} over {price.zones or '?'} zones"
    note = f"{spread}; {again:.2g} hours per day repeat interrupted work; clips checkpoint their latents"
    return Purchase("spot", 1, price.spot_median or 0.0, note, paid)


@dataclass(frozen=True, slots=True)
class PurchaseOption:
    """One way to buy the whole fleet. `usd_per_month` is None where no rate is known."""

    name: str
    usd_per_month: float | None
    note: str


def purchase_options(order: Order, terms: Terms) -> tuple[PurchaseOption, ...]:
    """On demand, Savings Plans of each term, spot, and the mix of the bill."""
    found = [PurchaseOption("on demand", order.on_demand().usd_per_month, "no commitment")]
    if order.fleet.is_scaled:
        return tuple(found)
    for years in YEARS:
        name = f"Compute Savings Plan, {counted(years, 'year')}"
        is_asked = terms.commit_discount is not None and terms.commit_years == years
        if is_asked or savings_rate(order.price, years) is not None:
            only = Terms(terms.commit_discount if is_asked else None, commit_years=years)
            note = "your rate, not a published one" if is_asked else f"catalog, {order.price.as_of}"
            found.append(PurchaseOption(name, order.bill(only).usd_per_month, note))
        else:
            found.append(PurchaseOption(name, None, NO_RATE))
    found.append(_all_spot(order.without_savings(), terms))
    return (*found, PurchaseOption("the bill", order.bill(terms).usd_per_month, "the mix of this plan"))


def _all_spot(order: Order, terms: Terms) -> PurchaseOption:
    if not order.price.spot_median:
        return PurchaseOption("spot", None, "the catalog has no spot price here")
    everything = replace(terms, interruptible_share=1.0, commit_discount=None)
    rate = f"interruptions per machine per day: {terms.interruptions_per_day:g}"
    note = f"{rate}; not for clips with a deadline"
    return PurchaseOption("spot where cheaper", order.all_spot(everything).usd_per_month, note)


def warnings(order: Order, terms: Terms) -> tuple[str, ...]:
    """What a buyer should know before signing."""
    if order.fleet.is_scaled:
        return (SCALED,)
    found = [SAVINGS_PLANS]
    if terms.commit_years > 1:
        found.append(THREE_YEARS)
    lost, is_spot = order.lost_share(terms), any(part.how == "spot" for part in order.bill(terms).purchases)
    if terms.interruptible_share and not is_spot:
        found.append(f"No spot: {_why_no_spot(order, terms)}.")
    if lost > MAX_LOST_SHARE and is_spot:
        found.append(
            f"Interruptions take {lost:.0%} of the time of a spot machine. The bill includes this, but the "
            "latency does not: lower --interruptible."
        )
    return tuple(found)


def _why_no_spot(order: Order, terms: Terms) -> str:
    if not order.price.spot_median:
        return "the catalog has no spot price of this machine here"
    if order.spot_machines(order.interruptible_machines(terms)):
        return "a spot machine costs more than one that is bought otherwise"
    machines, pools, fewest = order.fleet.instances, order.fleet.pools, order.fewest_spot_machines()
    if machines == 1:
        return "the plan has a single machine"
    if fewest is None:
        return f"{machines} machines are too few for spot and on-demand workers of each of {pools} tenants"
    needed = (
        "one machine" if fewest == 1 else f"{fewest} machines, the fewest that give each tenant spot workers"
    )
    share = f"{terms.interruptible_share:.0%} of {machines} machines"
    return f"{share} is less than {needed}; use --interruptible {ceil(100 * fewest / machines) / 100:g}"


DailyCost = Callable[[float], float | None]
"""USD per day by the volume of a day; None where no fleet is large enough."""


def exact_at(volume: float, usd_per_day: float, estimate: DailyCost) -> DailyCost:
    """The estimate, with the exact cost of one volume. Each cost is computed once."""
    return cache(lambda other: usd_per_day if isclose(other, volume, rel_tol=1e-9) else estimate(other))


def break_even(daily_cost: DailyCost, managed_usd: float, asked: float | None = None) -> float | None:
    """Clips per day from which the fleet stays cheaper than `managed_usd` per clip; None if it never does.

    A further machine may make it more expensive again for a while, so the last crossing counts. But where
    the fleet is cheaper at the volume that was `asked` for, the answer is not above that.
    """

    def is_cheaper(clips: float) -> bool:
        cost = daily_cost(clips)
        return cost is not None and cost <= clips * managed_usd

    volumes = sorted({*VOLUMES, *((asked,) if asked else ())})
    known = [volume for volume in volumes if daily_cost(volume) is not None]
    place = next((i for i in reversed(range(len(known))) if not is_cheaper(known[i])), -1)
    low, high = (known[place] if place >= 0 else 0.0), next(iter(known[place + 1 :]), None)
    while high is not None and high - low > max(0.5, 0.005 * high):
        middle = (low + high) / 2
        low, high = (low, middle) if is_cheaper(middle) else (middle, high)
    if asked is not None and is_cheaper(asked):
        return asked if high is None else min(high, asked)
    return high
