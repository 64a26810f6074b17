"""EC2 instance types, their prices by region, and the regions."""

from dataclasses import dataclass
from typing import Literal

from filmgate.catalog.records import Amount, IsoDate, Positive, PositiveCount


@dataclass(frozen=True, slots=True)
class Instance:
    """One instance type, as the EC2 API describes it. `gpu_count` is a fraction for a shared GPU."""

    name: str
    gpu: str
    gpu_count: Positive
    gpu_mib: PositiveCount
    vcpu: PositiveCount
    ram_gib: Positive
    status: Literal["on-demand", "capacity-blocks-only", "retired"]
    source: str
    as_of: IsoDate
    nvme_gb: Amount | None = None
    network_gbps: Amount | None = None
    ebs_mbps: Amount | None = None
    unsupported_reason: str | None = None

    @property
    def family(self) -> str:
        return self.name.partition(".")[0]

    @property
    def gpus(self) -> int:
        """Whole GPUs."""
        return int(self.gpu_count)


@dataclass(frozen=True, slots=True)
class Price:
    """USD per hour of one instance type in one region: Linux, shared tenancy, spot over all zones.

    `savings_1y` and `savings_3y` are the rates of Compute Savings Plans without payment in advance.
    """

    instance: str
    region: str
    source: str
    as_of: IsoDate
    on_demand: Positive | None = None
    spot_min: Amount | None = None
    spot_median: Amount | None = None
    spot_max: Amount | None = None
    zones: PositiveCount | None = None
    savings_1y: Positive | None = None
    savings_3y: Positive | None = None


@dataclass(frozen=True, slots=True)
class Region:
    """An AWS region and the jurisdiction that its data centres are in."""

    name: str
    jurisdiction: str
    source: str
    as_of: IsoDate
