"""Stage two: runs the diffusers pipeline up to its latents, and reports the steps the device has finished."""

import inspect
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from filmgate.errors import OutOfMemory
from filmgate.models.quality import FULL, plan_steps
from filmgate.pipeline.control import Control, Stage
from filmgate.pipeline.denoise.passes import PlannedPasses, planned_passes
from filmgate.pipeline.denoise.schedule import find_first_step, steps_without_waiting
from filmgate.pipeline.loading.families.base import Pipeline
from filmgate.pipeline.loading.loader import VideoModel, image_pipeline
from filmgate.pipeline.requests import ClipRequest
from filmgate.pipeline.text.encode import TextEmbedding
from filmgate.pipeline.transfer.streams import Mark, Streams
from filmgate.pipeline.wipe import wiping_samples


@dataclass(frozen=True, slots=True)
class DenoisedClip:
    """Latents in the layout that the decoder reads, still normalised, ready to decode or to store.

    The other fields describe how they were made; they are empty for latents from a checkpoint. The device
    may still be busy with the last steps: work that is queued for it may use the latents at once, the host
    calls `wait` first.
    """

    latents: Tensor
    is_text_cached: bool = False
    stage_seconds: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    steps: "StepCounter | None" = None

    def wait(self) -> None:
        """Block until the device has finished the last step, and report the steps."""
        if self.steps is not None:
            self.steps.finish()


def denoise(
    model: VideoModel, text: TextEmbedding, request: ClipRequest, control: Control, streams: Streams
) -> DenoisedClip:
    """Queue every denoising step. Raises Cancelled after the current step, and OutOfMemory.

    What comes before the first pass (the schedule, the noise, the encoded image) runs before
    `control.enter_device`, so that a worker can do it while the clip before is decoded. The passes run on
    the compute stream, whatever stream the caller prepares on.
    """
    pipe = model.pipe if request.image is None else image_pipeline(model)
    steps = StepCounter(streams, request.steps, control)
    networks = model.family.denoisers_of(pipe)

    def start() -> None:
        find_first_step(pipe.scheduler)
        control.enter_device()
        streams.join_compute()
        steps.start()

    frames = request.frames + model.family.extra_frames(pipe)
    arguments = {**text.arguments, **_arguments(request, frames), "callback_on_step_end": steps.on_step_end}
    accepted = inspect.signature(type(pipe).__call__).parameters
    arguments = {name: value for name, value in arguments.items() if name in accepted and value is not None}
    try:
        with (
            torch.inference_mode(),
            wiping_samples(pipe.scheduler) as kept,
            _before_first_pass(networks, start),
            steps_without_waiting(pipe.scheduler),
            _planned(pipe, networks, request),
        ):
            latents = pipe(**arguments, output_type="latent", return_dict=False)[0]
            latents = model.family.unpack_latents(pipe, latents, request).contiguous()
            kept.append(latents)
            steps.end()
            return DenoisedClip(latents, text.is_cached, steps=steps)
    except torch.OutOfMemoryError as exc:
        raise OutOfMemory(
            "the denoiser does not fit into GPU memory; set pipeline.offload to model or layers, "
            "or lower --size or --seconds"
        ) from exc


def _planned(pipe: Pipeline, networks: Sequence[Any], request: ClipRequest) -> AbstractContextManager[None]:
    """The passes of the request's quality level; nothing changes for `full`."""
    if request.quality == FULL:
        return nullcontext()
    passes_per_step = 2 if request.guidance > 1 else 1
    plan = plan_steps(request.quality, request.steps)
    return planned_passes(networks, PlannedPasses(plan, pipe.scheduler, passes_per_step))


@contextmanager
def _before_first_pass(networks: Sequence[Any], action: Callable[[], None]) -> Iterator[None]:
    """Call `action` when one of the networks is about to run for the first time."""
    has_run = False

    def run_once(*_: object) -> None:
        nonlocal has_run
        if not has_run:
            has_run = True
            action()

    hooks = [network.register_forward_pre_hook(run_once) for network in networks]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


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
        self._latents: Mark | None = None
        self._done = 0

    def start(self) -> None:
        self._control.check()
        self._control.report(Stage.DENOISE, 0, self._total)

    def on_step_end(
        self, _pipe: Pipeline, _step: int, _time: Tensor, values: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        self._queued.append(self._streams.mark_compute())
        if len(self._queued) > 1:
            self._wait_for_oldest()
        self._control.check()
        return values

    def end(self) -> None:
        """Mark the latents, which are made by a little work after the last step."""
        self._latents = self._streams.mark_compute()

    def finish(self) -> None:
        """Wait for the device, and report the steps that are not yet reported."""
        while self._queued:
            self._wait_for_oldest()
        if self._latents is not None:
            self._latents.wait_on_host()

    def _wait_for_oldest(self) -> None:
        self._queued.popleft().wait_on_host()
        self._done += 1
        self._control.report(Stage.DENOISE, self._done, self._total)
