"""The machines that a question may use: instance types with a price in the region, or bare GPUs."""

from collections.abc import Sequence
from dataclasses import dataclass

from filmgate.catalog.catalog import Catalog
from filmgate.catalog.gpus import Gpu
from filmgate.catalog.instances import Instance, Price
from filmgate.planner.answer import Rejected, dated_source
from filmgate.planner.fleet.answer import RegionPrice

MIN_BF16_CAPABILITY = 8.0


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

    def sources(self) -> list[str]:
        """The sources of the machine's facts."""
        gpu, instance, price = self.gpu, self.instance, self.price
        found = [dated_source("GPU", gpu.name, gpu.source, gpu.as_of)]
        if instance:
            found.append(dated_source("instance", instance.name, instance.source, instance.as_of))
        if price:
            found.append(
                dated_source("price", f"{price.instance} in {price.region}", price.source, price.as_of)
            )
        return found


def machines_for(
    catalog: Catalog, region: str, *, gpu: Gpu | None = None, names: Sequence[str] = ()
) -> tuple[list[Machine], list[Rejected]]:
    """Usable machines, and the rejected ones. A name without a dot is a bare GPU."""
    if gpu is not None:
        return _usable([Machine(gpu.name, gpu, 1, None, None)])
    bare = [catalog.gpu(name) for name in names if "." not in name]
    chosen = [catalog.instance(name) for name in names if "." in name]
    found, rejected = [Machine(gpu.name, gpu, 1, None, None) for gpu in bare], []
    for instance in chosen if names else catalog.instances.values():
        price = catalog.price(instance.name, region)
        rejection = _reject(instance, price, region)
        if rejection:
            rejected.append(rejection)
        else:
            found.append(Machine(instance.name, catalog.gpu(instance.gpu), instance.gpus, instance, price))
    usable, unusable = _usable(found)
    return usable, rejected + unusable


def check_residency(catalog: Catalog, region: str, residency: str | None) -> list[Rejected]:
    """A rejection of the region when it is not in the jurisdiction that the data must stay in."""
    if residency is None:
        return []
    jurisdiction = catalog.region(region).jurisdiction
    if jurisdiction == residency.upper():
        return []
    return [Rejected(region, f"{region} is in {jurisdiction}, and the data must stay in {residency.upper()}")]


def not_in_region(catalog: Catalog, rejection: Rejected, residency: str) -> str:
    """The verdict on a region that `check_residency` rejected."""
    names = [region.name for region in catalog.regions.values() if region.jurisdiction == residency.upper()]
    allowed = ", ".join(names) or "none in the catalog"
    return f"Not possible in {rejection.name}: {rejection.reason}. Regions in {residency.upper()}: {allowed}."


def no_machine(rejected: Sequence[Rejected], region: str) -> str:
    """The verdict when every machine was rejected before its memory and time were computed."""
    if not rejected:
        return f"No machine is known in {region}; give another --region."
    return f"No usable machine in {region}: {rejected[0].name}: {rejected[0].reason}."


def prices_by_region(machine: Machine, catalog: Catalog) -> tuple[RegionPrice, ...]:
    """The regions that have the machine, cheapest first."""
    rows = [p for p in catalog.prices.values() if p.instance == machine.name and p.on_demand is not None]
    rows.sort(key=lambda p: p.on_demand or 0.0)
    return tuple(
        RegionPrice(
            p.region,
            catalog.regions[p.region].jurisdiction if p.region in catalog.regions else None,
            p.on_demand,
            p.spot_min,
            p.spot_max,
        )
        for p in rows
    )


def _reject(instance: Instance, price: Price | None, region: str) -> Rejected | None:
    if instance.unsupported_reason:
        return Rejected(instance.name, instance.unsupported_reason)
    if instance.status == "retired":
        return Rejected(instance.name, f"retired, last listed {instance.as_of}")
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
        elif capability is not None and capability < MIN_BF16_CAPABILITY:
            reason = f"{gpu.name} has no bfloat16 (compute capability {capability:g}, needs 8.0)"
            rejected.append(Rejected(machine.name, reason, capability, MIN_BF16_CAPABILITY, "capability"))
        else:
            usable.append(machine)
    return usable, rejected
