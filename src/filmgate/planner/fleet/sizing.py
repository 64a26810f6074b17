"""Replicas for a latency target, warm replicas, cold starts and tenant isolation."""

import math
from dataclasses import dataclass, replace

from filmgate.catalog.gpus import GIB, MIB, Gpu
from filmgate.catalog.instances import Instance
from filmgate.planner.fleet.queueing import servers_for, wait_percentile
from filmgate.planner.fleet.traffic import Traffic

# Not published per instance type; every answer lists them as assumptions.
NVME_BYTES_PER_SECOND = 2.0e9
BOOT_SECONDS = 90.0
MAX_UTILISATION = 0.85  # without a latency target a fleet still needs capacity to catch up


@dataclass(frozen=True, slots=True)
class Fleet:
    """Replicas of one machine type. A replica is `gpus_per_replica` GPUs; waits and latencies are seconds."""

    replicas: int
    replicas_p99: int | None
    gpus_per_replica: int
    instances: int
    utilisation: float
    wait_p95: float
    latency_p95: float
    latency_p99: float
    warm_replicas: int
    warm_instances: int


def size_fleet(
    traffic: Traffic, service: float, slo: float | None, gpus_per_replica: int, replicas_per_instance: int
) -> Fleet | None:
    """The smallest fleet whose p95 latency meets the SLO in the busiest hour, or None."""
    rate = traffic.peak_rate
    if slo is None:
        replicas: int | None = max(1, math.ceil(rate * service / MAX_UTILISATION))
        stricter = None
    else:
        if service > slo:
            return None
        replicas = servers_for(rate, service, slo - service, 0.95, traffic.batch)
        stricter = servers_for(rate, service, slo - service, 0.99, traffic.batch)
    if replicas is None:
        return None
    wait_95 = wait_percentile(rate, service, replicas, 0.95, traffic.batch)
    wait_99 = wait_percentile(rate, service, replicas, 0.99, traffic.batch)
    warm = min(warm_replicas(traffic, service, slo), replicas)
    return Fleet(
        replicas=replicas,
        replicas_p99=stricter,
        gpus_per_replica=gpus_per_replica,
        instances=math.ceil(replicas / replicas_per_instance),
        utilisation=traffic.average_rate * service / replicas,
        wait_p95=wait_95,
        latency_p95=service + wait_95,
        latency_p99=service + wait_99,
        warm_replicas=warm,
        warm_instances=math.ceil(warm / replicas_per_instance),
    )


def with_cold_starts(fleet: Fleet, cold_share: float, cold_latency: float) -> Fleet:
    """The fleet when `cold_share` of the clips wait for a cold start, which raises the percentiles."""
    return replace(
        fleet,
        latency_p95=max(fleet.latency_p95, cold_latency) if cold_share > 0.05 else fleet.latency_p95,
        latency_p99=max(fleet.latency_p99, cold_latency) if cold_share > 0.01 else fleet.latency_p99,
    )


def warm_replicas(traffic: Traffic, service: float, slo: float | None) -> int:
    """Replicas that stay up outside the busy hours: none without an SLO, one with business hours."""
    if slo is None:
        return 0
    if traffic.busy_hours >= 24:
        return servers_for(traffic.peak_rate, service, slo - service, 0.95, traffic.batch) or 1
    return 1


@dataclass(frozen=True, slots=True)
class ColdStart:
    """Seconds until a new replica accepts work, by the source of its weights."""

    source: str
    load_seconds: float
    total_seconds: float
    is_assumed: bool


def cold_starts(weight_bytes: float, instance: Instance | None, gpu: Gpu) -> list[ColdStart]:
    """One entry for each source that the instance has."""
    sources: list[tuple[str, float, float, bool]] = []
    if instance and instance.network_gbps:
        sources.append(("object store over the network", instance.network_gbps / 8 * 1e9, BOOT_SECONDS, True))
    if instance and instance.ebs_mbps:
        sources.append(("EBS volume", instance.ebs_mbps / 8 * 1e6, BOOT_SECONDS, True))
    if instance and instance.nvme_gb:
        sources.append(("local NVMe, already filled", NVME_BYTES_PER_SECOND, 0.0, True))
    if gpu.pcie_gb_s:
        sources.append(("host memory, process restart", gpu.pcie_gb_s / 2 * 1e9, 0.0, False))
    return [
        ColdStart(name, weight_bytes / rate, boot + weight_bytes / rate, assumed)
        for name, rate, boot, assumed in sources
    ]


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
        mig_reason = f"1 of {slices} slices, {slice_bytes / GIB:.0f} GiB, {verb} {peak_bytes / GIB:.1f} GiB"
    gpus = float(instance.gpus) if instance else 1.0
    owned = f"{gpus:.0f} GPU{'s' if gpus > 1 else ''}, host memory and disk are used by one tenant"
    return [
        Isolation("shared GPU", True, "separate keys and queues, one process for all tenants", 0.0),
        Isolation("MIG slice", fits_slice, mig_reason, 1.0 / slices if slices else 0.0),
        Isolation("dedicated GPU", True, "GPU memory and caches are used by one tenant", 1.0),
        Isolation("dedicated instance", True, owned, gpus),
    ]
