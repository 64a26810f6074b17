"""Seconds for one clip on one machine: text, denoise, decode."""

from collections.abc import Mapping
from dataclasses import dataclass

from filmgate.catalog.gpus import Gpu, can_decode_fast
from filmgate.catalog.video_models import VideoModel
from filmgate.planner.roofline import Bound
from filmgate.planner.video.clip import ClipShape
from filmgate.planner.video.rates import (
    Software,
    StageTime,
    decode_time,
    forward_time,
    rates,
    scaled,
    text_time,
)
from filmgate.planner.video.work import HALF_BYTES, decode_work, forward_work, text_work, token_count

EXCHANGES_PER_LAYER = 4  # Ulysses sends queries, keys and values, and returns the result


@dataclass(frozen=True, slots=True)
class ClipTime:
    """The stages of a clip and their sum."""

    stages: tuple[StageTime, ...]

    @property
    def seconds(self) -> float:
        return sum(stage.seconds for stage in self.stages)

    @property
    def bound(self) -> Bound:
        return max(self.stages, key=lambda stage: stage.seconds).bound

    def of(self, stage: str) -> StageTime:
        return next(time for time in self.stages if time.stage == stage)


def exchange_bytes(model: VideoModel, clip: ClipShape, gpus: int) -> float:
    """Bytes that one GPU sends per forward pass when the sequence is split over `gpus`."""
    net = model.denoiser
    whole = EXCHANGES_PER_LAYER * net.layers * token_count(model, clip) * net.width * HALF_BYTES
    return whole * (gpus - 1) / gpus**2


def clip_time(
    model: VideoModel,
    clip: ClipShape,
    gpu: Gpu,
    gpus: int,
    software: Software,
    constants: Mapping[str, float],
) -> ClipTime:
    rate = rates(gpu, software, constants, model.denoiser.head_dim)
    forward = forward_time(forward_work(model, clip), rate, gpus, exchange_bytes(model, clip, gpus))
    decode = decode_work(model, clip, is_tiled=software.is_tiled, dtype=software.decode_dtype)
    return ClipTime(
        (
            text_time(text_work(model), rate),
            scaled(forward, clip.passes * fused_share(gpu, gpus, software)),
            scaled(decode_time(decode, rate), fast_decode_share(model, gpu, software)),
        )
    )


def fused_share(gpu: Gpu, gpus: int, software: Software) -> float:
    """The share of a pass that is left where `pipeline.kernels = auto` uses fused kernels.

    As for the decoder, the plan assumes a gain only where it was measured.
    """
    fused = software.fused
    if fused is None or gpus > 1 or gpu.compute_capability not in fused.compute_capabilities:
        return 1.0
    return fused.with_flash if software.has_flash else fused.with_torch


def fast_decode_share(model: VideoModel, gpu: Gpu, software: Software) -> float:
    """The share of decode time that is left where `pipeline.decoder = auto` uses Filmgate's own kernels.

    A worker uses them where they win a timed trial. Where that was not measured, the plan assumes that they
    do not win.
    """
    fast = model.vae.fast
    is_measured = fast is not None and gpu.compute_capability in fast.compute_capabilities
    return fast.time_share if fast and is_measured and tries_fast_decoder(model, gpu, software) else 1.0


def tries_fast_decoder(model: VideoModel, gpu: Gpu, software: Software) -> bool:
    """Whether a worker builds Filmgate's own kernels for this model on this GPU."""
    is_whole_bf16 = not software.is_tiled and software.decode_dtype == "bf16"
    is_offered = model.vae.fast is not None and software.has_fast_decoder and is_whole_bf16
    return is_offered and gpu.capability is not None and can_decode_fast(gpu.capability)
