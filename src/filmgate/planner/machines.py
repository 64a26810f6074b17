"""The machines that a question may use: instance types with a price in the region, or bare GPUs."""

from collections.abc import Sequence
from dataclasses import dataclass

from filmgate.catalog.catalog import Catalog
from filmgate.catalog.gpus import Gpu
from filmgate.catalog.instances import Instance, Price
from filmgate.planner.answer import Rejected, grouped_sources
from filmgate.planner.fleet.answer import RegionPrice

MIN_CAPABILITY = 7.5  # Turing, in float16; torch and diffusers need no older GPU


@dataclass(frozen=True, slots=True)
class Machine:
    """An instance type with its price, or a bare GPU without one."""

    name: str
    gpu: Gpu
    gpus: int
    instance: Instance | None
    price: Price | None

    @property
    def usd_per_hour(self) -> float | None:
        return self.price.on_demand if self.price else None


def machine_sources(machines: Sequence[Machine], elsewhere: Sequence[Price] = ()) -> list[str]:
    """Where the figures of these machines, and prices in other regions, are from; equal sources together."""
    prices = [*(one.price for one in machines if one.price), *elsewhere]
    return [
        *grouped_sources("GPU", ((one.gpu.name, one.gpu) for one in machines)),
        *grouped_sources("instance", ((one.name, one.instance) for one in machines if one.instance)),
        *grouped_sources("price", ((f"{price.instance} in {price.region}", price) for price in prices)),
    ]


def machines_for(
    catalog: Catalog, region: str, *, gpu: Gpu | None = None, names: Sequence[str] = ()
) -> tuple[list[Machine], list[Rejected]]:
    """Usable machines, and the rejected ones. A name of no instance type is a bare GPU."""
    if gpu is not None:
        return _usable([Machine(gpu.name, gpu, 1, None, None)])
    bare = [catalog.gpu(name) for name in names if not catalog.is_instance(name)]
    chosen = [catalog.instance(name) for name in names if catalog.is_instance(name)]
    found, rejected = [Machine(gpu.name, gpu, 1, None, None) for gpu in bare], []
    for instance in chosen if names else catalog.instances.values():
        price = price_in(catalog, instance.name, region)
        rejection = _reject(instance, price, region)
        if rejection:
            rejected.append(rejection)
        else:
            found.append(Machine(instance.name, catalog.gpu(instance.gpu), instance.gpus, instance, price))
    usable, unusable = _usable(found)
    return usable, rejected + unusable


def has_prices(catalog: Catalog, region: str) -> bool:
    """Whether the catalog has a price of any instance type in the region."""
    return any(price.region == region and price.on_demand is not None for price in catalog.prices.values())


def price_in(catalog: Catalog, instance: str, region: str) -> Price | None:
    """The price in the region. If the catalog has no price there at all, the highest one of other regions."""
    known = prices_of(instance, catalog)
    if not known or has_prices(catalog, region):
        return catalog.price(instance, region)
    highest = max(known, key=lambda price: price.on_demand or 0.0)
    source = f"estimate: the highest known price, that of {highest.region}; {highest.source}"
    return Price(instance, region, source, highest.as_of, on_demand=highest.on_demand)


def unpriced_region(catalog: Catalog, region: str) -> str:
    """A sentence about a region whose prices are estimates; empty for others."""
    if has_prices(catalog, region):
        return ""
    return (
        f"The catalog has no price for {region}, so costs use the highest price of other regions; check that "
        "the machine is offered there, and give --prices."
    )


def check_residency(catalog: Catalog, region: str, residency: str | None) -> list[Rejected]:
    """A rejection of the region when it is not in the jurisdiction that the data must stay in."""
    jurisdiction = catalog.region(region).jurisdiction
    if residency in (None, jurisdiction):
        return []
    return [Rejected(region, f"is in {jurisdiction}, and the data must stay in {residency}")]


def not_in_region(catalog: Catalog, rejection: Rejected, residency: str | None) -> str:
    """The verdict on a region that `check_residency` rejected."""
    names = [region.name for region in catalog.regions.values() if region.jurisdiction == residency]
    advice = f"Give a --region in {residency}: {', '.join(names)}."
    return f"Not possible: {rejection.name} {rejection.reason}. {advice}"


def no_machine(rejected: Sequence[Rejected], region: str) -> str:
    """The verdict when every machine was rejected before its memory and time were computed."""
    if not rejected:
        return f"The catalog has no machine in {region}; give another --region."
    return f"No usable machine in {region}: {rejected[0].name}: {unusable_because(rejected[0])}"


def unusable_because(rejected: Rejected) -> str:
    """Why a machine cannot be planned, and what to do where that can be changed."""
    remedy = " Give another --region, or a --prices file that has one." if rejected.unit == "USD/h" else ""
    return f"{rejected.reason}.{remedy}"


def prices_by_region(
    machine: Machine, catalog: Catalog, residency: str | None, hours_per_month: float | None
) -> tuple[RegionPrice, ...]:
    """The regions that have the machine: those that the residency rule allows first, each cheapest first."""
    found = []
    for p in prices_of(machine.name, catalog):
        jurisdiction = catalog.regions[p.region].jurisdiction if p.region in catalog.regions else None
        monthly = (p.on_demand or 0.0) * hours_per_month if hours_per_month is not None else None
        is_allowed = residency in (None, jurisdiction)
        found.append(
            RegionPrice(p.region, jurisdiction, p.on_demand, p.spot_min, p.spot_max, monthly, is_allowed)
        )
    return tuple(sorted(found, key=lambda row: (not row.is_allowed, row.usd_per_hour or 0.0)))


def prices_of(instance: str, catalog: Catalog) -> list[Price]:
    """On-demand prices of the instance type in every region."""
    return [p for p in catalog.prices.values() if p.instance == instance and p.on_demand is not None]


def prices_elsewhere(machine: Machine, region: str, catalog: Catalog) -> list[Price]:
    """On-demand prices of the machine in the other regions of the same jurisdiction."""
    law = catalog.region(region).jurisdiction
    others = [r.name for r in catalog.regions.values() if r.jurisdiction == law and r.name != region]
    found = [catalog.price(machine.name, name) for name in others]
    return [price for price in found if price is not None and price.on_demand is not None]


def _reject(instance: Instance, price: Price | None, region: str) -> Rejected | None:
    if instance.unsupported_reason:
        return Rejected(instance.name, instance.unsupported_reason)
    if instance.status == "retired":
        return Rejected(instance.name, f"retired, last listed {instance.as_of}")
    if instance.gpus < 1:
        return Rejected(instance.name, f"has {instance.gpu_count:g} of a GPU, and a plan uses whole GPUs")
    if price is None or price.on_demand is None:
        return Rejected(instance.name, f"no on-demand price in {region}", unit="USD/h")
    return None


def _usable(machines: list[Machine]) -> tuple[list[Machine], list[Rejected]]:
    usable, rejected = [], []
    for machine in machines:
        gpu = machine.gpu
        capability = float(gpu.compute_capability or 0) or None
        if gpu.half_flops is None or gpu.bandwidth is None:
            missing = "arithmetic rate" if gpu.half_flops is None else "bandwidth"
            rejected.append(Rejected(machine.name, f"{gpu.name}: no published {missing}", unit="TFLOP/s"))
        elif capability is not None and capability < MIN_CAPABILITY:
            reason = f"{gpu.name} is too old (compute capability {capability:g}, needs {MIN_CAPABILITY:g})"
            rejected.append(Rejected(machine.name, reason, capability, MIN_CAPABILITY, "capability"))
        else:
            usable.append(machine)
    return usable, rejected
