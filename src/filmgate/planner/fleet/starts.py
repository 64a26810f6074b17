"""Seconds until a new replica accepts work: node, image, weights and compiler."""

from collections.abc import Sequence
from dataclasses import dataclass

from filmgate.catalog.gpus import Gpu
from filmgate.catalog.instances import Instance

# Not published per instance type; every answer lists them as assumptions.
BOOT_SECONDS = 90.0
IMAGE_BYTES = 8e9
IMAGE_BYTES_PER_SECOND = 0.4e9
STORE_BYTES_PER_SECOND = 2.5e9
NVME_BYTES_PER_SECOND = 2.0e9
NETWORK_GBPS = 10.0
START_ASSUMPTIONS = (
    f"a new node boots in {BOOT_SECONDS:.0f} s (not published per instance type)",
    f"an image of {IMAGE_BYTES / 1e9:.0f} GB is pulled and unpacked at {IMAGE_BYTES_PER_SECOND / 1e9:g} GB/s",
    f"the object store delivers at most {STORE_BYTES_PER_SECOND / 1e9:g} GB/s to one node",
    f"local NVMe reads {NVME_BYTES_PER_SECOND / 1e9:.0f} GB/s (not published per instance type)",
    f"a machine whose network is not known, as with a bare GPU, has {NETWORK_GBPS:.0f} Gbit/s",
)
# On a node whose cache is empty. Measured on one H200: docs/denoiser.md (first pass of compiled blocks),
# docs/decoder.md (the first clip).
COMPILE_SECONDS = 11.0
KERNEL_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class ColdStart:
    """Seconds until a new replica accepts work, by the source of its weights."""

    source: str
    boot_seconds: float
    image_seconds: float
    load_seconds: float
    build_seconds: float
    total_seconds: float


@dataclass(frozen=True, slots=True)
class Start:
    """Seconds until a replica accepts work on a new machine, and on an existing one."""

    new_machine: float
    same_machine: float

    @classmethod
    def slowest(cls, starts: Sequence[ColdStart]) -> "Start":
        """The slowest of these starts. An existing machine has booted and pulled the image."""
        on_new_nodes = (start for start in starts if start.boot_seconds)
        return cls(
            max(start.total_seconds for start in starts),
            max(start.load_seconds + start.build_seconds for start in on_new_nodes),
        )


def cold_starts(
    weight_bytes: float, instance: Instance | None, gpu: Gpu, build_seconds: float = 0.0
) -> tuple[ColdStart, ...]:
    """One entry for each source that the machine has. A new node also pulls the image and compiles."""
    known = instance.network_gbps if instance else None
    # EFA carries traffic between nodes. The object store is read over the ordinary network.
    network = min((known or NETWORK_GBPS) / 8 * 1e9, STORE_BYTES_PER_SECOND)
    image = IMAGE_BYTES / min(network, IMAGE_BYTES_PER_SECOND)

    def new_node(source: str, rate: float) -> ColdStart:
        load = weight_bytes / rate
        total = BOOT_SECONDS + image + load + build_seconds
        return ColdStart(source, BOOT_SECONDS, image, load, build_seconds, total)

    def restart(source: str, rate: float) -> ColdStart:
        load = weight_bytes / rate
        return ColdStart(source, 0.0, 0.0, load, 0.0, load)

    source = "object store over the network" if known else f"object store over {NETWORK_GBPS:.0f} Gbit/s"
    found = [new_node(source, network)]
    if instance and instance.ebs_mbps:
        found.append(new_node("EBS volume", instance.ebs_mbps / 8 * 1e6))
    if instance and instance.nvme_gb:
        found.append(restart("local NVMe, already filled", NVME_BYTES_PER_SECOND))
    if gpu.pcie_gb_s:
        found.append(restart("host memory, process restart", gpu.pcie_gb_s / 2 * 1e9))
    return tuple(found)
