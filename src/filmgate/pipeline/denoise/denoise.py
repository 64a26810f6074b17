"""Stage two: embeddings become latents, step by step; counts only steps the device has finished."""

import inspect
from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from filmgate.pipeline.control import Control, Stage
from filmgate.pipeline.loading.loader import Pipeline, VideoModel, image_pipeline
from filmgate.pipeline.loading.quality import forget_steps
from filmgate.pipeline.text.encode import TextEmbedding
from filmgate.pipeline.transfer.streams import Mark, Streams, open_streams


@dataclass(frozen=True, slots=True)
class ClipRequest:
    """One clip, complete and already checked against the model's limits."""

    width: int
    height: int
    frames: int
    fps: int
    steps: int
    seed: int
    guidance: float
    image: Image.Image | None = None

    @property
    def forwards(self) -> int:
        """Passes through the denoiser: guidance takes two a step."""
        return self.steps * (2 if self.guidance > 1 else 1)


@dataclass(frozen=True, slots=True)
class DenoisedClip:
    """Latents worth keeping: five-dimensional, still normalised, ready to decode or to checkpoint."""

    latents: Tensor


def denoise(model: VideoModel, text: TextEmbedding, request: ClipRequest, control: Control) -> DenoisedClip:
    """Run the pipeline up to its latents. Cancel takes effect after the step at work."""
    pipe = model.pipe if request.image is None else image_pipeline(model)
    steps = StepCounter(open_streams(model.placement.device), request.steps, control)
    accepted = inspect.signature(type(pipe).__call__).parameters
    arguments = {
        **text.arguments,
        **_asked(pipe, request),
        "image": request.image,
        "callback_on_step_end": steps.on_step_end,
    }
    offered = {name: value for name, value in arguments.items() if name in accepted and value is not None}
    forget_steps(pipe)
    with torch.inference_mode():
        latents = pipe(**offered, output_type="latent", return_dict=False)[0]
        steps.finish()
        return DenoisedClip(_unpacked(pipe, latents, request))


def _asked(pipe: Pipeline, request: ClipRequest) -> dict[str, Any]:
    return {
        "width": request.width,
        "height": request.height,
        "num_frames": request.frames + _frames_of_the_picture(pipe),
        "num_inference_steps": request.steps,
        "guidance_scale": request.guidance,
        "max_guidance_scale": request.guidance,
        "frame_rate": request.fps,
        "fps": request.fps,
        "generator": torch.Generator("cpu").manual_seed(request.seed),
    }


def _frames_of_the_picture(pipe: Pipeline) -> int:
    """HunyuanVideo's image model makes the given picture again, a latent frame that is then thrown away."""
    config = getattr(getattr(pipe, "transformer", None), "config", None)
    is_repeated = getattr(config, "image_condition_type", None) == "latent_concat"
    return int(pipe.vae_scale_factor_temporal) if is_repeated else 0


class StepCounter:
    """Hears of steps when they are queued, reports them when they are done, and stays one step behind."""

    def __init__(self, streams: Streams, total: int, control: Control) -> None:
        self._streams = streams
        self._total = total
        self._control = control
        self._queued: deque[Mark] = deque()
        self._done = 0
        control.report(Stage.DENOISE, 0, total)

    def on_step_end(
        self, _pipe: Pipeline, _step: int, _time: Tensor, values: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        self._queued.append(self._streams.mark_compute())
        if len(self._queued) > 1:
            self._settle()
        self._control.check()
        return values

    def finish(self) -> None:
        while self._queued:
            self._settle()

    def _settle(self) -> None:
        self._queued.popleft().wait_on_host()
        self._done += 1
        self._control.report(Stage.DENOISE, self._done, self._total)


def _unpacked(pipe: Pipeline, latents: Tensor, request: ClipRequest) -> Tensor:
    """The latents as the VAE's layout has them: LTX packs tokens, CogVideoX 1.5 pads frames in front."""
    if latents.ndim == 3:
        spatial, temporal = pipe.vae_spatial_compression_ratio, pipe.vae_temporal_compression_ratio
        latent_frames = (request.frames - 1) // temporal + 1
        unpacked: Tensor = pipe._unpack_latents(  # noqa: SLF001 - guarded by tests/contract
            latents,
            latent_frames,
            request.height // spatial,
            request.width // spatial,
            pipe.transformer_spatial_patch_size,
            pipe.transformer_temporal_patch_size,
        )
        return unpacked
    if "CogVideoX" in type(pipe).__name__:
        wanted = (request.frames - 1) // pipe.vae_scale_factor_temporal + 1
        return latents[:, latents.shape[1] - wanted :]
    return latents
