"""The machines a question may use: every instance with a price in the region, or one bare GPU."""

from collections.abc import Sequence
from dataclasses import dataclass

from filmgate.catalog.catalog import Catalog
from filmgate.catalog.gpus import Gpu
from filmgate.catalog.instances import Instance, Price
from filmgate.planner.answer import Json, Rejected

FIRST_WITH_BF16 = 8.0


@dataclass(frozen=True, slots=True)
class Machine:
    """GPUs that can be had together, and their price."""

    name: str
    gpu: Gpu
    gpus: int
    instance: Instance | None
    price: Price | None

    @property
    def usd_per_hour(self) -> float | None:
        return self.price.on_demand if self.price else None


def machines_for(
    catalog: Catalog, region: str, *, gpu: Gpu | None = None, names: Sequence[str] = ()
) -> tuple[list[Machine], list[Rejected]]:
    """Usable machines, and those ruled out before any arithmetic; a name without a dot is a bare GPU."""
    if gpu is not None:
        return _usable([Machine(gpu.name, gpu, 1, None, None)])
    bare = [catalog.gpu(name) for name in names if "." not in name]
    chosen = [catalog.instance(name) for name in names if "." in name]
    found, rejected = [Machine(gpu.name, gpu, 1, None, None) for gpu in bare], []
    for instance in chosen if names else catalog.instances.values():
        price = catalog.price(instance.name, region)
        refusal = _refuse(instance, price, region)
        if refusal:
            rejected.append(refusal)
        else:
            found.append(Machine(instance.name, catalog.gpu(instance.gpu), instance.gpus, instance, price))
    usable, unusable = _usable(found)
    return usable, rejected + unusable


def residency_refusals(catalog: Catalog, region: str, residency: str | None) -> list[Rejected]:
    """The region must stand where the data may."""
    if residency is None or catalog.region(region).jurisdiction == residency.upper():
        return []
    place = catalog.region(region).jurisdiction
    return [
        Rejected(
            region, f"{region} stands in {place}, the data must stay in {residency.upper()}", None, None, ""
        )
    ]


def allowed_regions(catalog: Catalog, residency: str) -> str:
    names = [region.name for region in catalog.regions.values() if region.jurisdiction == residency.upper()]
    return ", ".join(names) or "none in the catalog"


def price_by_region(machine: Machine, catalog: Catalog) -> list[Json]:
    """Where else the machine is, cheapest first."""
    rows = [p for p in catalog.prices.values() if p.instance == machine.name and p.on_demand is not None]
    rows.sort(key=lambda p: p.on_demand or 0.0)
    return [
        {
            "region": p.region,
            "jurisdiction": catalog.regions[p.region].jurisdiction if p.region in catalog.regions else None,
            "usd_per_hour": p.on_demand,
            "spot_min": p.spot_min,
            "spot_max": p.spot_max,
        }
        for p in rows
    ]


def _refuse(instance: Instance, price: Price | None, region: str) -> Rejected | None:
    if instance.unsupported_reason:
        return Rejected(instance.name, instance.unsupported_reason, None, None, "")
    if instance.status == "retired":
        return Rejected(instance.name, f"retired, last seen {instance.as_of}", None, None, "")
    if price is None or price.on_demand is None:
        return Rejected(instance.name, f"no on-demand price in {region}", None, None, "USD/h")
    return None


def _usable(machines: list[Machine]) -> tuple[list[Machine], list[Rejected]]:
    usable, rejected = [], []
    for machine in machines:
        gpu = machine.gpu
        capability = float(gpu.compute_capability or 0) or None
        if gpu.half_flops is None or gpu.bandwidth is None:
            missing = "arithmetic rate" if gpu.half_flops is None else "bandwidth"
            rejected.append(
                Rejected(machine.name, f"{gpu.name}: no published {missing}", None, None, "TFLOP/s")
            )
        elif capability is not None and capability < FIRST_WITH_BF16:
            reason = f"{gpu.name} has no bfloat16 (compute capability {capability:g}, 8.0 needed)"
            rejected.append(Rejected(machine.name, reason, capability, FIRST_WITH_BF16, "capability"))
        else:
            usable.append(machine)
    return usable, rejected
