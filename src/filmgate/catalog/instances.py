"""Rentable machines and what they cost where."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Instance:
    """One size of one family, as the EC2 API describes it."""

    name: str
    gpu: str
    gpu_count: float
    gpu_mib: int
    vcpu: int
    ram_gib: float
    status: str
    source: str
    as_of: str
    nvme_gb: float | None = None
    network_gbps: float | None = None
    efa_interfaces: int | None = None
    ebs_mbps: float | None = None
    unsupported_because: str | None = None

    @property
    def family(self) -> str:
        return self.name.partition(".")[0]

    @property
    def gpus(self) -> int:
        return int(self.gpu_count)


@dataclass(frozen=True, slots=True)
class Price:
    """USD an hour of one instance in one region, Linux, shared tenancy; spot over the region's zones."""

    instance: str
    region: str
    source: str
    as_of: str
    on_demand: float | None = None
    spot_min: float | None = None
    spot_median: float | None = None
    spot_max: float | None = None
    zones: int | None = None


@dataclass(frozen=True, slots=True)
class Region:
    """Where a region's machines stand, for data-residency limits."""

    name: str
    place: str
    jurisdiction: str
    source: str
    as_of: str
