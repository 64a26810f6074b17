"""Ways to separate tenants, and what each does to the number of machines."""

from dataclasses import dataclass, replace

from filmgate.catalog.gpus import GIB, MIB, Gpu
from filmgate.catalog.instances import Instance
from filmgate.planner.report.numbers import counted

TIME_SLICING = (
    "replicas of the device plugin take turns on one GPU: any number can be scheduled, but memory and faults "
    "are shared, and together they are no faster than one"
)
MPS = (
    "processes share the GPU at once, with limits on memory and threads; a fatal fault of one ends all, "
    "so it separates no tenants"
)


@dataclass(frozen=True, slots=True)
class Isolation:
    """One way to separate tenants, whether the work fits, the GPUs it takes per tenant, and its cost."""

    level: str
    is_possible: bool
    reason: str
    gpus_per_tenant: float
    usd_per_tenant_month: float | None = None

    def priced(self, usd_per_gpu_month: float) -> "Isolation":
        return replace(self, usd_per_tenant_month=usd_per_gpu_month * self.gpus_per_tenant)


def isolation_levels(
    gpu: Gpu,
    instance: Instance | None,
    peak_bytes: float,
    clip_seconds: float | None = None,
    slo_seconds: float | None = None,
) -> tuple[Isolation, ...]:
    """From the weakest and cheapest to the strongest. `clip_seconds` are those of a clip on a whole GPU."""
    slices = gpu.mig_slices or 0
    gpus = instance.gpus if instance else 1
    owned = f"{counted(gpus, 'GPU')}, host memory and disk are used by one tenant"
    is_sliced, mig = _mig(gpu, peak_bytes, clip_seconds, slo_seconds)
    return (
        Isolation("shared GPU", True, "separate keys and queues, one process for all tenants", 0.0),
        Isolation("time-slicing", False, TIME_SLICING, 0.0),
        Isolation("MPS", False, MPS, 0.0),
        Isolation("MIG slice", is_sliced, mig, 1.0 / slices if slices else 0.0),
        Isolation("dedicated GPU", True, "GPU memory and caches are used by one tenant", 1.0),
        Isolation("dedicated instance", True, owned, float(gpus)),
    )


def _mig(
    gpu: Gpu, peak_bytes: float, clip_seconds: float | None, slo_seconds: float | None
) -> tuple[bool, str]:
    """Whether a slice has the memory and the speed, and why. A slice has its share of both."""
    slices = gpu.mig_slices
    if not slices:
        return False, f"{gpu.name} has no MIG"
    held = gpu.memory_mib * MIB / slices
    what = f"1 of {slices} slices, {held / GIB:.0f} GiB,"
    if peak_bytes > held:
        return False, f"{what} is too small for {peak_bytes / GIB:.1f} GiB"
    fits = f"{what} holds {peak_bytes / GIB:.1f} GiB"
    if clip_seconds is None:
        return True, f"{fits}, at about 1/{slices} of the speed"
    slow = clip_seconds * slices
    if slo_seconds is not None and slow > slo_seconds:
        return False, f"{fits}, but a clip takes about {slow:.0f} s there, the SLO is {slo_seconds:g} s"
    return True, f"{fits}; a clip takes about {slow:.0f} s there, {slices} times as long"
