"""GPUs as the planner sees them: memory, bandwidth, arithmetic, links."""

from dataclasses import dataclass

MIB = 1 << 20
TERA = 1e12
GIGA = 1e9


@dataclass(frozen=True, slots=True)
class Gpu:
    """One accelerator; a figure nobody published is None."""

    name: str
    product: str
    generation: str
    memory_mib: int
    source: str
    as_of: str
    compute_capability: str | None = None
    nvml_mib: int | None = None
    memory_type: str | None = None
    bandwidth_gb_s: float | None = None
    fp16_tflops: float | None = None
    bf16_tflops: float | None = None
    fp8_tflops: float | None = None
    fp4_tflops: float | None = None
    sm_count: int | None = None
    power_watts: int | None = None
    mig_slices: int | None = None
    nvlink_gb_s: float | None = None
    pcie_gb_s: float | None = None
    nvenc: int | None = None
    nvdec: int | None = None
    min_driver: str | None = None
    min_cuda: str | None = None
    needs_open_modules: bool | None = None
    karpenter_name: str | None = None
    aliases: tuple[str, ...] = ()
    note: str | None = None

    @property
    def memory_bytes(self) -> int:
        """Usable device memory: what NVML was seen to report, else what the EC2 API reports."""
        return (self.nvml_mib or self.memory_mib) * MIB

    @property
    def half_flops(self) -> float | None:
        """Dense FLOP/s in bfloat16, or in float16 on chips older than bfloat16; None where nobody says."""
        tflops = self.bf16_tflops or self.fp16_tflops
        return tflops * TERA if tflops else None

    @property
    def bandwidth(self) -> float | None:
        """Device memory bytes a second."""
        return self.bandwidth_gb_s * GIGA if self.bandwidth_gb_s else None

    @property
    def has_nvlink(self) -> bool:
        return bool(self.nvlink_gb_s)

    def flops(self, precision: str) -> float | None:
        """Dense FLOP/s at a weight precision; a chip without that path computes in half precision."""
        tflops = {"fp8": self.fp8_tflops, "fp4": self.fp4_tflops}.get(precision)
        return tflops * TERA if tflops else self.half_flops
