"""What a clip asks of the hardware, stage by stage: tokens, FLOPs and bytes, before any GPU is named."""

from dataclasses import dataclass
from enum import StrEnum

from filmgate.catalog.video_models import Vae, VideoModel
from filmgate.errors import UsageError

BYTES = {"fp32": 4.0, "bf16": 2.0, "fp8": 1.0, "int8": 1.0, "fp4": 0.5625}


class Stage(StrEnum):
    """The stations of a clip on the GPU."""

    TEXT = "text"
    DENOISE = "denoise"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class Clip:
    """One clip to make: its size, length and how hard to work on it."""

    width: int
    height: int
    frames: int
    fps: float
    steps: int
    forwards_per_step: int

    @property
    def seconds(self) -> float:
        return self.frames / self.fps

    @property
    def pixels(self) -> int:
        return self.width * self.height


@dataclass(frozen=True, slots=True)
class Work:
    """FLOPs by kind, bytes moved through device memory by an eager run, values that few blocks average."""

    stage: Stage
    linear_flops: float
    attention_flops: float
    convolution_flops: float
    traffic_bytes: float
    weight_bytes: float
    norm_values: float = 0.0

    @property
    def flops(self) -> float:
        return self.linear_flops + self.attention_flops + self.convolution_flops


def clip_for(model: VideoModel, **asked: float | None) -> Clip:
    """The clip asked for, with the model's defaults; raises UsageError where the model cannot make it."""
    given = {key: value for key, value in asked.items() if value is not None}
    base = model.defaults
    fps = given.get("fps", base.fps)
    frames = given.get("frames") or _frames_of(model, given.get("seconds"), fps)
    clip = Clip(
        width=int(given.get("width", base.width)),
        height=int(given.get("height", base.height)),
        frames=int(frames),
        fps=fps,
        steps=int(given.get("steps", base.steps)),
        forwards_per_step=int(given.get("forwards_per_step", base.forwards_per_step)),
    )
    _check(model, clip)
    return clip


def _frames_of(model: VideoModel, seconds: float | None, fps: float) -> int:
    """The nearest length the decoder can make: k steps and one frame."""
    if seconds is None:
        return model.defaults.frames
    return max(1, round(seconds * fps / model.frame_step)) * model.frame_step + 1


def _check(model: VideoModel, clip: Clip) -> None:
    multiple = model.size_multiple
    for side, option in ((clip.width, "width"), (clip.height, "height")):
        if side < multiple or side % multiple:
            near = max(multiple, round(side / multiple) * multiple)
            raise UsageError(
                f"{option} {side} does not suit {model.id}: use a multiple of {multiple}, e.g. {near}",
                option="--size",
            )
    if model.is_fixed_shape and (clip.width, clip.height) != (model.defaults.width, model.defaults.height):
        only = f"{model.defaults.width}x{model.defaults.height}"
        raise UsageError(f"{model.id} was trained for {only} alone", option="--size")
    if clip.frames < 1 or clip.steps < 1 or clip.fps <= 0:
        raise UsageError("frames, steps and fps must be positive", option="--frames")
    if clip.pixels * clip.frames > 1 << 33:
        raise UsageError(
            f"{clip.width}x{clip.height}x{clip.frames} is beyond any model here", option="--size"
        )


def latent_steps(vae: Vae, frames: int) -> int:
    return (frames - 1) // vae.time_ratio + 1


def token_count(model: VideoModel, clip: Clip) -> int:
    """Video tokens the denoiser attends over."""
    patch_time, patch_height, patch_width = model.patch
    steps = -(-latent_steps(model.vae, clip.frames) // patch_time)
    rows = clip.height // (model.vae.space_ratio * patch_height)
    columns = clip.width // (model.vae.space_ratio * patch_width)
    return steps * rows * columns


def forward_work(model: VideoModel, clip: Clip) -> Work:
    """One forward of the denoiser."""
    n = token_count(model, clip)
    net = model.denoiser
    return Work(
        Stage.DENOISE,
        linear_flops=net.linear_flops[0] + net.linear_flops[1] * n,
        attention_flops=net.attention_flops[0] * n + net.attention_flops[1] * n * n,
        convolution_flops=0.0,
        traffic_bytes=net.traffic_bytes[0] + net.traffic_bytes[1] * n,
        weight_bytes=BYTES["bf16"] * (net.params + net.extra_params),
    )


def decode_work(model: VideoModel, clip: Clip, *, is_tiled: bool = False, dtype: str = "bf16") -> Work:
    """The whole decode, latents to frames."""
    vae = model.vae
    steps = latent_steps(vae, clip.frames)
    area = clip.pixels / vae.space_ratio**2
    flops = area * (vae.flops_first_latent + vae.flops_next_latent * (steps - 1))
    flops += vae.flops_attention_per_area_pair * area * area * steps
    factor = vae.tiled.work_factor if is_tiled and vae.tiled else 1.0
    wide = BYTES[dtype] / BYTES["bf16"]
    return Work(
        Stage.DECODE,
        linear_flops=0.0,
        attention_flops=0.0,
        convolution_flops=flops * factor,
        traffic_bytes=vae.traffic_bytes_per_pixel * clip.pixels * clip.frames * factor * wide,
        weight_bytes=BYTES[dtype] * vae.decoder_params,
        norm_values=vae.norm_values_per_pixel * clip.pixels * clip.frames * factor,
    )


def text_work(model: VideoModel) -> Work:
    """All prompt encoders, once a clip."""
    flops = sum(2.0 * encoder.params * encoder.tokens for encoder in model.text_encoders)
    weights = sum(BYTES["bf16"] * encoder.params for encoder in model.text_encoders)
    return Work(Stage.TEXT, flops, 0.0, 0.0, weights, weights)
