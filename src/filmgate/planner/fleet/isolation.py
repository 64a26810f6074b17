"""Ways to separate tenants, and what each does to the number of machines."""

from dataclasses import dataclass

from filmgate.catalog.gpus import GIB, MIB, Gpu
from filmgate.catalog.instances import Instance


@dataclass(frozen=True, slots=True)
class Isolation:
    """One way to separate tenants, whether the work fits, and the GPUs it takes per tenant."""

    level: str
    is_possible: bool
    reason: str
    gpus_per_tenant: float


def isolation_levels(gpu: Gpu, instance: Instance | None, peak_bytes: float) -> list[Isolation]:
    """From the weakest and cheapest to the strongest."""
    slices = gpu.mig_slices or 0
    slice_bytes = gpu.memory_mib * MIB / slices if slices else 0.0
    fits_slice = bool(slices) and peak_bytes <= slice_bytes
    if not slices:
        mig_reason = f"{gpu.name} has no MIG"
    else:
        verb = "holds" if fits_slice else "is too small for"
        slow = f", and a clip takes about {slices} times as long there" if fits_slice else ""
        mig_reason = (
            f"1 of {slices} slices, {slice_bytes / GIB:.0f} GiB, {verb} {peak_bytes / GIB:.1f} GiB{slow}"
        )
    gpus = float(instance.gpus) if instance else 1.0
    owned = f"{gpus:.0f} GPU{'s' if gpus > 1 else ''}, host memory and disk are used by one tenant"
    return [
        Isolation("shared GPU", True, "separate keys and queues, one process for all tenants", 0.0),
        Isolation("MIG slice", fits_slice, mig_reason, 1.0 / slices if slices else 0.0),
        Isolation("dedicated GPU", True, "GPU memory and caches are used by one tenant", 1.0),
        Isolation("dedicated instance", True, owned, gpus),
    ]
