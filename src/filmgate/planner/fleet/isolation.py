"""Ways to separate tenants, and what each does to the number of machines."""

from dataclasses import dataclass

from filmgate.catalog.gpus import GIB, MIB, Gpu
from filmgate.catalog.instances import Instance

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
    """One way to separate tenants, whether the work fits, and the GPUs it takes per tenant."""

    level: str
    is_possible: bool
    reason: str
    gpus_per_tenant: float


@dataclass(frozen=True, slots=True)
class Clip:
    """What a tenant's work needs: peak memory, seconds on a whole GPU, and the SLO if there is one."""

    peak_bytes: float
    seconds: float | None = None
    slo_seconds: float | None = None


def isolation_levels(gpu: Gpu, instance: Instance | None, clip: Clip) -> list[Isolation]:
    """From the weakest and cheapest to the strongest."""
    slices = gpu.mig_slices or 0
    gpus = float(instance.gpus) if instance else 1.0
    owned = f"{gpus:.0f} GPU{'s' if gpus > 1 else ''}, host memory and disk are used by one tenant"
    is_sliced, mig = _mig(gpu, slices, clip)
    return [
        Isolation("shared GPU", True, "separate keys and queues, one process for all tenants", 0.0),
        Isolation("time-slicing", False, TIME_SLICING, 0.0),
        Isolation("MPS", False, MPS, 0.0),
        Isolation("MIG slice", is_sliced, mig, 1.0 / slices if slices else 0.0),
        Isolation("dedicated GPU", True, "GPU memory and caches are used by one tenant", 1.0),
        Isolation("dedicated instance", True, owned, gpus),
    ]


def _mig(gpu: Gpu, slices: int, clip: Clip) -> tuple[bool, str]:
    """Whether a slice has the memory and the speed, and why. A slice has its share of both."""
    if not slices:
        return False, f"{gpu.name} has no MIG"
    held = gpu.memory_mib * MIB / slices
    what = f"1 of {slices} slices, {held / GIB:.0f} GiB,"
    if clip.peak_bytes > held:
        return False, f"{what} is too small for {clip.peak_bytes / GIB:.1f} GiB"
    fits = f"{what} holds {clip.peak_bytes / GIB:.1f} GiB"
    if clip.seconds is None:
        return True, f"{fits}, at about 1/{slices} of the speed"
    slow = clip.seconds * slices
    if clip.slo_seconds is not None and slow > clip.slo_seconds:
        return False, f"{fits}, but a clip takes about {slow:.0f} s there, the SLO is {clip.slo_seconds:g} s"
    return True, f"{fits}; a clip takes about {slow:.0f} s there, {slices} times as long"
