"""GPUs: memory, bandwidth, arithmetic rates, links and software requirements."""

from dataclasses import dataclass

from filmgate.catalog.records import Amount, Count, IsoDate, Positive, PositiveCount

MIB = 1 << 20
GIB = 1 << 30
TERA = 1e12
GIGA = 1e9
FAST_DECODER_FROM = (8, 0)
"""The fast decoder is tried from this compute capability on. Kernels compile for 8.0, 8.9, 9.0 and 12.0."""


def can_decode_fast(capability: tuple[int, int]) -> bool:
    """Whether a worker on such a GPU times the fast decoder: the one rule of planner and decoder."""
    return capability >= FAST_DECODER_FROM


@dataclass(frozen=True, slots=True)
class Gpu:
    """One accelerator. A figure that is not published is None."""

    name: str
    product: str
    generation: str
    memory_mib: PositiveCount
    source: str
    as_of: IsoDate
    compute_capability: str | None = None
    nvml_mib: PositiveCount | None = None
    bandwidth_gb_s: Positive | None = None
    fp16_tflops: Positive | None = None
    bf16_tflops: Positive | None = None
    fp8_tflops: Positive | None = None
    fp4_tflops: Positive | None = None
    estimated_bf16_tflops: Positive | None = None
    sm_count: PositiveCount | None = None
    mig_slices: Count | None = None
    nvlink_gb_s: Amount | None = None
    pcie_gb_s: Positive | None = None
    nvenc: Count | None = None
    min_driver: str | None = None
    min_cuda: str | None = None
    needs_open_modules: bool | None = None
    min_eks_ami: str | None = None
    karpenter_name: str | None = None
    aliases: tuple[str, ...] = ()
    note: str | None = None

    @property
    def capability(self) -> tuple[int, int] | None:
        """The compute capability as CUDA reports it."""
        if self.compute_capability is None:
            return None
        major, _, minor = self.compute_capability.partition(".")
        return int(major), int(minor or 0)

    @property
    def memory_bytes(self) -> int:
        """Usable device memory as NVML reports it, otherwise as the EC2 API reports it."""
        return (self.nvml_mib or self.memory_mib) * MIB

    @property
    def half_flops(self) -> float | None:
        """Dense FLOP/s in bfloat16, or in float16 where the GPU has no bfloat16, or an estimate."""
        tflops = self.bf16_tflops or self.fp16_tflops or self.estimated_bf16_tflops
        return tflops * TERA if tflops else None

    @property
    def is_rate_estimated(self) -> bool:
        """Whether no arithmetic rate is published, or only that of a generation without bfloat16."""
        return self.bf16_tflops is None

    @property
    def bandwidth(self) -> float | None:
        """Device memory bandwidth in bytes per second."""
        return self.bandwidth_gb_s * GIGA if self.bandwidth_gb_s else None

    @property
    def has_nvlink(self) -> bool:
        return bool(self.nvlink_gb_s)

    def flops(self, precision: str) -> float | None:
        """Dense FLOP/s at a weight precision; in half precision where the GPU has no path for it."""
        tflops = {"fp8": self.fp8_tflops, "fp4": self.fp4_tflops}.get(precision)
        return tflops * TERA if tflops else self.half_flops
