"""Seconds from work: arithmetic, bytes and links each take their time; the largest names the bound.

A kernel reaches a share of the chip's peak that falls as the chip packs more arithmetic into each
multiprocessor: share = exp(a) * density ** -gamma, corrected per generation. The constants come from runs
(calibration.py); this file only applies them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from filmgate.catalog.gpus import GIGA, Gpu
from filmgate.planner.video.work import BYTES, Work

REFERENCE_DENSITY = 3e12
MOST_OF_PEAK = 0.95
SMALL_HEAD = 64
UNKNOWN_SMS_DENSITY = 3e12


class Bound(StrEnum):
    """What a stage waits for most."""

    COMPUTE = "compute"
    MEMORY = "memory"
    INTERCONNECT = "interconnect"


@dataclass(frozen=True, slots=True)
class Software:
    """How a model is run: attention kernels of which era, eager or fused operators, what decodes."""

    kernel: str = "fused"
    mode: str = "eager"
    decode_dtype: str = "bf16"
    is_tiled: bool = False
    precision: str = "bf16"
    has_fast_decoder: bool = False


@dataclass(frozen=True, slots=True)
class Rates:
    """FLOP/s and bytes a second that software reaches on one GPU of a machine."""

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
    """Seconds of one stage, and where they go."""

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


def density(gpu: Gpu) -> float:
    """Dense half-precision FLOP/s a multiprocessor; the common value where the count is not known."""
    if gpu.half_flops is None or gpu.sm_count is None:
        return UNKNOWN_SMS_DENSITY
    return gpu.half_flops / gpu.sm_count


def rates(gpu: Gpu, software: Software, constants: Mapping[str, float], head_dim: int = 128) -> Rates:
    """What this software reaches on this GPU, by the calibrated constants (logarithms)."""
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
    fp32 = BYTES["bf16"] / BYTES[software.decode_dtype]
    return Rates(
        linear=peak * _share(constants["linear"] + shared),
        attention=gpu.half_flops * _share(attention),
        convolution=gpu.half_flops * fp32 * _share(constants["convolution"] + shared),
        bandwidth=gpu.bandwidth * _share(constants["bandwidth"]),
        decode_bandwidth=gpu.bandwidth * _share(constants["decode_bandwidth"]),
        # torch gives each group of a GroupNorm one block: 32 of them, which wait for memory on any GPU.
        norm=math.exp(constants["group_norm"]),
        link=_link_rate(gpu, constants),
        is_link_shared=not gpu.has_nvlink,
        traffic_share=1.0 if software.mode == "eager" else math.exp(constants[f"traffic.{software.mode}"]),
        straggle=math.exp(constants["straggle"]),
    )


def _share(log_share: float) -> float:
    """A share of the peak; smooth near the top, so that a fit keeps a slope there."""
    share = math.exp(log_share)
    return MOST_OF_PEAK * math.tanh(share / MOST_OF_PEAK) if share > 0.5 * MOST_OF_PEAK else share


def _link_rate(gpu: Gpu, constants: Mapping[str, float]) -> float:
    if gpu.has_nvlink:
        return (gpu.nvlink_gb_s or 0.0) / 2 * GIGA * math.exp(constants["nvlink"])
    return (gpu.pcie_gb_s or 16.0) * GIGA * math.exp(constants["pcie"])


def forward_time(work: Work, rate: Rates, gpus: int = 1, exchange_bytes: float = 0.0) -> StageTime:
    """One denoiser forward split over `gpus` by sequence; `exchange_bytes` is what each GPU sends.

    Without NVLink all GPUs send through the host, which carries two at full rate. Every further GPU adds one
    to wait for at each of the layers' meetings: `straggle`, a share of the split time.
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
    """The decode, on one GPU: the published splits leave it on the first."""
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
