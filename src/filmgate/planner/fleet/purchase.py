"""Ways to buy the same fleet, each with its monthly cost, and what speaks against a commitment."""

from dataclasses import dataclass, replace

from filmgate.catalog.instances import Price
from filmgate.planner.fleet.money import ON_DEMAND, YEARS, Bill, Terms, bill, savings_rate, spot_machines
from filmgate.planner.fleet.sizing import Fleet
from filmgate.planner.fleet.traffic import Traffic

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
class Way:
    """One way to buy the whole fleet. `usd_per_month` is None where no rate is known."""

    name: str
    usd_per_month: float | None
    note: str


@dataclass(frozen=True, slots=True)
class Order:
    """A fleet to buy: its traffic, its price, and the seconds of one unit of work and of a start."""

    fleet: Fleet
    traffic: Traffic
    price: Price
    service: float
    start_seconds: float

    def bill(self, terms: Terms) -> Bill:
        return bill(
            self.fleet,
            self.traffic,
            self.price,
            terms,
            service=self.service,
            start_seconds=self.start_seconds,
        )


def ways_to_buy(order: Order, terms: Terms) -> tuple[Way, ...]:
    """On demand, Savings Plans of each term, spot, and the mix of the bill."""
    plain = replace(order, price=replace(order.price, savings_1y=None, savings_3y=None))
    found = [Way("on demand", plain.bill(ON_DEMAND).usd_per_month, "no commitment")]
    if order.fleet.is_scaled:
        return tuple(found)
    for years in YEARS:
        name = f"Compute Savings Plan, {years} year{'s' if years > 1 else ''}"
        is_asked = terms.commit_discount is not None and terms.commit_years == years
        if is_asked or savings_rate(order.price, years) is not None:
            only = Terms(terms.commit_discount if is_asked else None, commit_years=years)
            note = "your rate, not a published one" if is_asked else f"catalog, {order.price.as_of}"
            found.append(Way(name, order.bill(only).usd_per_month, note))
        else:
            found.append(Way(name, None, NO_RATE))
    found.append(_all_spot(plain, terms))
    return (*found, Way("the bill", order.bill(terms).usd_per_month, "the mix of this plan"))


def _all_spot(order: Order, terms: Terms) -> Way:
    if not order.price.spot_median:
        return Way("spot", None, "the catalog has no spot price here")
    everything = replace(terms, interruptible_share=1.0, commit_discount=None)
    note = f"interruptions of a machine per day: {terms.interruptions_per_day:g}; not for a deadline"
    return Way("spot where cheaper", order.bill(everything).usd_per_month, note)


def warnings(order: Order, terms: Terms) -> tuple[str, ...]:
    """What a buyer should know before signing."""
    if order.fleet.is_scaled:
        return (SCALED,)
    found = [SAVINGS_PLANS]
    if terms.commit_years > 1:
        found.append(THREE_YEARS)
    if terms.interruptible_share and not spot_machines(order.fleet, order.price, terms):
        share = f"{terms.interruptible_share:.0%} of {order.fleet.instances} machines"
        found.append(
            f"No spot: {share} is less than one machine; use --interruptible {1 / order.fleet.instances:.2g}."
            if order.price.spot_median
            else "No spot: the catalog has no spot price of this machine here."
        )
    return tuple(found)
