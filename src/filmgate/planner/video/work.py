"""The work of a clip, stage by stage: tokens, FLOPs and bytes, independent of the GPU."""

from dataclasses import dataclass

from filmgate.catalog.precisions import bytes_per_value
from filmgate.catalog.video_models import Vae, VideoModel
from filmgate.jobs import Stage
from filmgate.planner.video.clip import ClipShape

HALF_BYTES = bytes_per_value("bf16")


@dataclass(frozen=True, slots=True)
class Work:
    """FLOPs by kind and bytes of device memory that eager operators read and write.

    `norm_values` are values that a GroupNorm averages with few thread blocks.
    """

    stage: Stage
    traffic_bytes: float
    linear_flops: float = 0.0
    attention_flops: float = 0.0
    convolution_flops: float = 0.0
    norm_values: float = 0.0

    @property
    def flops(self) -> float:
        return self.linear_flops + self.attention_flops + self.convolution_flops


def latent_steps(vae: Vae, frames: int) -> int:
    return (frames - 1) // vae.time_ratio + 1


def token_count(model: VideoModel, clip: ClipShape) -> int:
    """Video tokens in one forward pass of the denoiser."""
    patch_time, patch_height, patch_width = model.patch
    steps = -(-latent_steps(model.vae, clip.frames) // patch_time)
    rows = clip.size.height // (model.vae.space_ratio * patch_height)
    columns = clip.size.width // (model.vae.space_ratio * patch_width)
    return steps * rows * columns


def forward_work(model: VideoModel, clip: ClipShape) -> Work:
    """One forward pass of the denoiser."""
    n = token_count(model, clip)
    net = model.denoiser
    return Work(
        Stage.DENOISE,
        linear_flops=net.linear_flops[0] + net.linear_flops[1] * n,
        attention_flops=net.attention_flops[0] * n + net.attention_flops[1] * n * n,
        traffic_bytes=net.traffic_bytes[0] + net.traffic_bytes[1] * n,
    )


def decode_work(model: VideoModel, clip: ClipShape, *, is_tiled: bool = False, dtype: str = "bf16") -> Work:
    """The whole decode, from latents to frames."""
    vae = model.vae
    steps = latent_steps(vae, clip.frames)
    area = clip.pixels / vae.space_ratio**2
    flops = area * (vae.flops_first_latent + vae.flops_next_latent * (steps - 1))
    flops += vae.flops_attention_per_area_pair * area * area * steps
    factor = vae.tiled.work_factor if is_tiled and vae.tiled else 1.0
    wide = bytes_per_value(dtype) / HALF_BYTES
    return Work(
        Stage.DECODE,
        convolution_flops=flops * factor,
        traffic_bytes=vae.traffic_bytes_per_pixel * clip.pixels * clip.frames * factor * wide,
        norm_values=vae.norm_values_per_pixel * clip.pixels * clip.frames * factor,
    )


def text_work(model: VideoModel) -> Work:
    """All prompt encoders, once per clip."""
    flops = sum(2.0 * encoder.params * encoder.tokens for encoder in model.text_encoders)
    weights = sum(HALF_BYTES * encoder.params for encoder in model.text_encoders)
    return Work(Stage.TEXT, weights, linear_flops=flops)
