"""Stage two: runs the diffusers pipeline up to its latents, and reports the steps the device has finished.

The schedulers of diffusers queue their work without stopping the host, which must stay ahead of the device:
while the last step runs, decode is queued behind it and the next clip is prepared. Values do not change. The
latents are also packed as bytes: a retry that has them starts at decode.
"""

import inspect
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import wraps
from types import MappingProxyType
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor
from torch.overrides import TorchFunctionMode

from filmgate.errors import ObjectCorrupt
from filmgate.jobs import Stage
from filmgate.models.quality import FULL, plan_steps
from filmgate.pipeline.control import Control
from filmgate.pipeline.denoise.passes import PlannedPasses, planned_passes
from filmgate.pipeline.loading.families.base import Pipeline
from filmgate.pipeline.loading.loader import VideoModel, image_pipeline
from filmgate.pipeline.memory_errors import out_of_memory_as
from filmgate.pipeline.requests import ClipRequest
from filmgate.pipeline.text import TextEmbedding
from filmgate.pipeline.transfer.streams import Mark, Streams, open_streams
from filmgate.pipeline.wipe import wiping, wiping_samples

_NAME = "latents"


@dataclass(frozen=True, slots=True)
class DenoisedClip:
    """Latents in the layout that the decoder reads, still normalised, ready to decode or to store.

    The other fields describe how they were made; they are empty for latents from a checkpoint. The device
    may still be busy with the last steps: work that is queued for it may use the latents, the host calls
    `wait` first.
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

    Everything before the first pass (the schedule, the noise, the encoded image) runs before
    `control.enter_device`, so that a worker can do it while the previous clip is decoded. The passes run on
    the compute stream, even if the caller prepares on another one.
    """
    pipe = model.pipe if request.image is None else image_pipeline(model)
    steps = StepCounter(streams, request.steps, control)
    networks = model.family.denoisers_of(pipe)
    passes = _plan_passes(pipe.scheduler, request)

    def start() -> None:
        find_first_step(pipe.scheduler)
        if passes is not None:
            passes.start()
        control.enter_device()
        streams.join_compute()
        steps.start()

    frames = request.frames + model.family.extra_frames(pipe)
    arguments = {**text.arguments, **_arguments(request, frames), "callback_on_step_end": steps.on_step_end}
    accepted = inspect.signature(type(pipe).__call__).parameters
    arguments = {name: value for name, value in arguments.items() if name in accepted and value is not None}
    with (
        out_of_memory_as(
            "the denoiser does not fit into GPU memory; set pipeline.offload to model or layers, "
            "or lower --size or --seconds"
        ),
        torch.inference_mode(),
        wiping_samples(pipe.scheduler) as kept,
        _before_first_pass(networks, start),
        non_blocking_steps(pipe.scheduler),
        planned_passes(networks, passes) if passes is not None else nullcontext(),
    ):
        latents = pipe(**arguments, output_type="latent", return_dict=False)[0]
        if model.family.extra_frames(pipe):  # the pipeline drops them here, but only after it decodes
            latents = steps.latents
        latents = model.family.unpack_latents(pipe, latents, request).contiguous()
        kept.append(latents)
        steps.end()
        return DenoisedClip(latents, text.is_cached, steps=steps)


def _plan_passes(scheduler: Any, request: ClipRequest) -> PlannedPasses | None:
    """The passes of the request's quality level; `full` needs no plan."""
    if request.quality == FULL:
        return None
    passes_per_step = 2 if request.guidance > 1 else 1
    return PlannedPasses(plan_steps(request.quality, request.steps), scheduler, passes_per_step)


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
        self._end: Mark | None = None
        self._done = 0
        self.latents: Tensor | None = None  # of the last step that was queued

    def start(self) -> None:
        self._control.check()
        self._control.report(Stage.DENOISE, 0, self._total)

    def on_step_end(
        self, _pipe: Pipeline, _step: int, _time: Tensor, values: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        self.latents = values["latents"]
        self._queued.append(self._streams.mark_compute())
        if len(self._queued) > 1:
            self._wait_for_oldest()
        self._control.check()
        return values

    def end(self) -> None:
        """Mark the latents, which are made by a little work after the last step."""
        self._end, self.latents = self._streams.mark_compute(), None

    def finish(self) -> None:
        """Wait for the device, and report the steps that are not yet reported."""
        while self._queued:
            self._wait_for_oldest()
        if self._end is not None:
            self._end.wait_on_host()

    def _wait_for_oldest(self) -> None:
        self._queued.popleft().wait_on_host()
        self._done += 1
        self._control.report(Stage.DENOISE, self._done, self._total)


def pack_latents(denoised: DenoisedClip) -> bytes:
    """The latents as a safetensors file, bit-exact in their own dtype.

    Waits for the last denoising step, but not for work queued after it, which the copy does not stop.
    """
    denoised.wait()
    latents = denoised.latents.detach()
    assert latents.is_contiguous(), "otherwise the compute stream would have to copy them"
    streams = open_streams(latents.device, "copy latents")
    copy = streams.host_buffer(latents.nbytes)
    # The latents are ready: the copy waits for nothing but its own stream.
    _, copied = streams.copy(latents.view(-1).view(torch.uint8), copy, after=streams.mark_copy())
    copied.wait_on_host()
    with wiping(copy):  # page-locked memory is reused as well
        return save({_NAME: copy.view(latents.dtype).view(latents.shape)})


def unpack_latents(data: bytes, device: torch.device) -> DenoisedClip:
    """The latents on the device that decodes them. Raises ObjectCorrupt if the bytes are not a checkpoint."""
    try:
        return DenoisedClip(load(data)[_NAME].to(device))
    except (SafetensorError, KeyError) as exc:
        raise ObjectCorrupt("the stored latents cannot be read") from exc


def find_first_step(scheduler: Any) -> None:
    """Look up where the schedule starts, which diffusers does after the first pass: the host would wait."""
    if getattr(scheduler, "begin_index", 0) is None and hasattr(scheduler, "index_for_timestep"):
        timesteps = scheduler.timesteps.cpu()  # on the GPU the search would stop the host three times
        scheduler.set_begin_index(scheduler.index_for_timestep(timesteps[0], timesteps))


@contextmanager
def non_blocking_steps(scheduler: Any) -> Iterator[None]:
    """Inside the block, `scheduler.step` does not wait for the device."""
    step = scheduler.step

    @wraps(step)
    def queue_step(*args: Any, **kwargs: Any) -> Any:
        with NonBlockingCalls():
            return step(*args, **kwargs)

    scheduler.step = queue_step
    try:
        yield
    finally:
        del scheduler.step


class NonBlockingCalls(TorchFunctionMode):
    """Replaces the calls of a scheduler that wait for a GPU by others with the same result.

    A copy of a number from pageable memory waits for the stream; a kernel that fills it in does not. Solving
    waits only to report a singular matrix, which coefficients of a schedule never form.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is Tensor.to and not kwargs and len(args) == 2 and _is_number(args[0]):
            number, target = args
            if isinstance(target, torch.device) and target.type == "cuda":
                return torch.full((), number.item(), dtype=number.dtype, device=target)
        if func is torch.linalg.solve:
            return torch.linalg.solve_ex(*args, **(kwargs or {})).result
        return func(*args, **(kwargs or {}))


def _is_number(tensor: Tensor) -> bool:
    return tensor.ndim == 0 and tensor.device.type == "cpu"
