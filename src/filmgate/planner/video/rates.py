"""Seconds from work: arithmetic, memory traffic and links each take time at a calibrated share of the peak.

The times add up because eager kernels run one after another.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from filmgate.catalog.gpus import GIGA, Gpu
from filmgate.catalog.precisions import bytes_per_value
from filmgate.models.families import FusedTime
from filmgate.planner.roofline import MAX_SHARE_OF_PEAK, REFERENCE_DENSITY, Bound, density
from filmgate.planner.video.work import HALF_BYTES, Work

SMALL_HEAD = 64


@dataclass(frozen=True, slots=True)
class Software:
    """How a model runs: generation of attention kernels, operator fusion, decode, and weight precision."""

    kernel: str = "fused"
    mode: str = "eager"
    decode_dtype: str = "bf16"
    is_tiled: bool = False
    precision: str = "bf16"
    has_fast_decoder: bool = False
    fused: FusedTime | None = None
    has_flash: bool = False  # flash-attn-4, which only fused kernels use


@dataclass(frozen=True, slots=True)
class Rates:
    """FLOP/s and bytes per second that the software reaches on one GPU."""

    linear: float
    attention: float
    convolution: float
    bandwidth: float
    decode_bandwidth: float
    norm: float
    link: float
    is_link_shared: bool
    traffic_share: float
    straggle: float


@dataclass(frozen=True, slots=True)
class StageTime:
    """Seconds of one stage by resource."""

    stage: str
    compute: float
    memory: float
    interconnect: float

    @property
    def seconds(self) -> float:
        return self.compute + self.memory + self.interconnect

    @property
    def bound(self) -> Bound:
        parts = {
            Bound.COMPUTE: self.compute,
            Bound.MEMORY: self.memory,
            Bound.INTERCONNECT: self.interconnect,
        }
        return max(parts, key=lambda bound: parts[bound])


def rates(gpu: Gpu, software: Software, constants: Mapping[str, float], head_dim: int = 128) -> Rates:
    """The rates of this software on this GPU. Raises ValueError when a published figure is missing."""
    if gpu.half_flops is None or gpu.bandwidth is None:
        raise ValueError(f"{gpu.name}: no published arithmetic rate or bandwidth")
    peak = gpu.flops(software.precision) or gpu.half_flops
    thin = -constants["gamma"] * math.log(density(gpu) / REFERENCE_DENSITY)
    shared = thin + constants.get(f"generation.{gpu.generation}", 0.0)
    attention = constants["attention"] + shared
    if software.kernel == "flash2" and gpu.generation == "hopper":
        attention += constants["flash2_on_hopper"]
    if head_dim <= SMALL_HEAD:
        attention += constants["small_head"]
    fp32 = HALF_BYTES / bytes_per_value(software.decode_dtype)
    return Rates(
        linear=peak * _share(constants["linear"] + shared),
        attention=gpu.half_flops * _share(attention),
        convolution=gpu.half_flops * fp32 * _share(constants["convolution"] + shared),
        bandwidth=gpu.bandwidth * _share(constants["bandwidth"]),
        decode_bandwidth=gpu.bandwidth * _share(constants["decode_bandwidth"]),
        # torch runs each group of a GroupNorm in one thread block: 32 blocks, limited by memory latency.
        norm=math.exp(constants["group_norm"]),
        link=_link_rate(gpu, constants),
        is_link_shared=not gpu.has_nvlink,
        traffic_share=1.0 if software.mode == "eager" else math.exp(constants[f"traffic.{software.mode}"]),
        straggle=math.exp(constants["straggle"]),
    )


def _share(log_share: float) -> float:
    """A share of the peak. It approaches the maximum smoothly, so a fit keeps a slope there."""
    share, limit = math.exp(log_share), MAX_SHARE_OF_PEAK
    return limit * math.tanh(share / limit) if share > 0.5 * limit else share


def _link_rate(gpu: Gpu, constants: Mapping[str, float]) -> float:
    if gpu.has_nvlink:
        return (gpu.nvlink_gb_s or 0.0) / 2 * GIGA * math.exp(constants["nvlink"])
    return (gpu.pcie_gb_s or 16.0) * GIGA * math.exp(constants["pcie"])


def forward_time(work: Work, rate: Rates, gpus: int = 1, exchange_bytes: float = 0.0) -> StageTime:
    """One denoiser forward pass, split over `gpus` by sequence; each GPU sends `exchange_bytes`.

    Without NVLink all GPUs send through the host, which carries two at full rate. Each further GPU adds
    `straggle`, a share of the split time, because the GPUs wait for the slowest one in every layer.
    """
    split = (1.0 + rate.straggle * (gpus - 1)) / gpus
    sharers = max(1.0, gpus / 2) if rate.is_link_shared else 1.0
    return StageTime(
        stage=work.stage.value,
        compute=(work.linear_flops / rate.linear + work.attention_flops / rate.attention) * split,
        memory=work.traffic_bytes * rate.traffic_share / rate.bandwidth * split,
        interconnect=exchange_bytes * sharers / rate.link if gpus > 1 else 0.0,
    )


def decode_time(work: Work, rate: Rates) -> StageTime:
    """The decode on one GPU. Published multi-GPU runs also decode on one GPU."""
    return StageTime(
        stage=work.stage.value,
        compute=work.convolution_flops / rate.convolution,
        memory=work.traffic_bytes / rate.decode_bandwidth + work.norm_values / rate.norm,
        interconnect=0.0,
    )


def text_time(work: Work, rate: Rates) -> StageTime:
    return StageTime(
        work.stage.value, work.linear_flops / rate.linear, work.traffic_bytes / rate.bandwidth, 0.0
    )


def scaled(time: StageTime, factor: float) -> StageTime:
    return StageTime(time.stage, time.compute * factor, time.memory * factor, time.interconnect * factor)
