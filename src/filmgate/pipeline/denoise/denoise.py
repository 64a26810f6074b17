"""Stage two: runs the diffusers pipeline up to its latents, and reports the steps the device has finished."""

import inspect
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from filmgate.errors import OutOfMemory
from filmgate.pipeline.control import Control, Stage
from filmgate.pipeline.loading.families.base import Pipeline
from filmgate.pipeline.loading.loader import VideoModel, image_pipeline
from filmgate.pipeline.loading.quality import reset_step_caches
from filmgate.pipeline.requests import ClipRequest
from filmgate.pipeline.text.encode import TextEmbedding
from filmgate.pipeline.transfer.streams import Mark, Streams, open_streams


@dataclass(frozen=True, slots=True)
class DenoisedClip:
    """Latents in the layout that the decoder reads, still normalised, ready to decode or to store.

    The other fields describe how they were made; they are empty for latents from a checkpoint.
    """

    latents: Tensor
    is_text_cached: bool = False
    stage_seconds: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))


def denoise(model: VideoModel, text: TextEmbedding, request: ClipRequest, control: Control) -> DenoisedClip:
    """Run every denoising step. Raises Cancelled after the current step, and OutOfMemory."""
    pipe = model.pipe if request.image is None else image_pipeline(model)
    steps = StepCounter(open_streams(model.placement.device), request.steps, control)
    frames = request.frames + model.family.extra_frames(pipe)
    arguments = {**text.arguments, **_arguments(request, frames), "callback_on_step_end": steps.on_step_end}
    accepted = inspect.signature(type(pipe).__call__).parameters
    arguments = {name: value for name, value in arguments.items() if name in accepted and value is not None}
    reset_step_caches(model.family.denoisers_of(pipe))
    try:
        with torch.inference_mode():
            latents = pipe(**arguments, output_type="latent", return_dict=False)[0]
            steps.finish()
            return DenoisedClip(model.family.unpack_latents(pipe, latents, request), text.is_cached)
    except torch.OutOfMemoryError as exc:
        raise OutOfMemory(
            "the denoiser does not fit into GPU memory; set pipeline.offload to model or layers, "
            "or lower --size or --seconds"
        ) from exc


def _arguments(request: ClipRequest, frames: int) -> dict[str, Any]:
    """The request under every name that a diffusers video pipeline uses for its fields."""
    return {
        "width": request.width,
        "height": request.height,
        "num_frames": frames,
        "num_inference_steps": request.steps,
        "guidance_scale": request.guidance,
        "max_guidance_scale": request.guidance,
        "frame_rate": request.fps,
        "fps": request.fps,
        "generator": torch.Generator("cpu").manual_seed(request.seed),
        "image": request.image,
    }


class StepCounter:
    """Counts the steps that the device has finished; the pipeline calls it when a step is queued.

    It stays one step behind, so the device always has a queued step to run.
    """

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
            self._wait_for_oldest()
        self._control.check()
        return values

    def finish(self) -> None:
        while self._queued:
            self._wait_for_oldest()

    def _wait_for_oldest(self) -> None:
        self._queued.popleft().wait_on_host()
        self._done += 1
        self._control.report(Stage.DENOISE, self._done, self._total)
