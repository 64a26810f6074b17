"""The runner on our own GPU: the frame pipeline as a stream of outputs, several models taking turns.

torch is imported where it is first needed, so that a worker with bad settings says so at once.
"""

import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from threading import Event
from typing import TYPE_CHECKING

from filmgate.errors import DeviceError, FilmgateError
from filmgate.jobs import Route, Stage
from filmgate.models.cards import UNKNOWN_RATES, ModelCard
from filmgate.pipeline.control import Control, Progress
from filmgate.pipeline.transfer.channel import pull
from filmgate.settings import PipelineSettings
from filmgate.telemetry.logs import adopt_loggers
from filmgate.worker.base import (
    ClipSource,
    EarlyClip,
    Fragment,
    Latents,
    Output,
    RenderTask,
    Step,
    Still,
)
from filmgate.worker.loaded_models import ModelShelf

if TYPE_CHECKING:
    from filmgate.pipeline.denoise.denoise import ClipRequest, DenoisedClip
    from filmgate.pipeline.loading.loader import VideoModel
    from filmgate.pipeline.render import Renderer

    Loaded = tuple[VideoModel, Renderer]

Emit = Callable[[Output], None]
_OUTPUTS_AHEAD = 4
_STAGES = {"text": Stage.TEXT, "denoise": Stage.DENOISE, "decode": Stage.DECODE}
_UNLIMITED_BYTES = 1 << 62


class GpuRunner:
    """Renders on one device. `models` maps the names clients use to shipped models, folders or hub ids."""

    def __init__(self, models: Mapping[str, str], settings: PipelineSettings) -> None:
        from filmgate.pipeline.loading.model_memory import budget_bytes, name_device, weigh

        self._locations = dict(models)
        self._settings = settings
        self._device = name_device(settings)
        self._cards: dict[str, ModelCard] = {}
        self._is_sound = False
        self._shelf: ModelShelf[Loaded] = ModelShelf(
            budget_bytes(settings) or _UNLIMITED_BYTES,
            measure=lambda name: weigh(self._locations[name], settings),
            load=self._load,
            unload=_unload,
        )

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(self._locations)

    @property
    def route(self) -> Route:
        return Route.GPU

    @property
    def device(self) -> str:
        return self._device

    def cards(self) -> tuple[ModelCard, ...]:
        """What clients may ask of each model; none before the canary has sung."""
        return tuple(self._cards.values()) if self._is_sound else ()

    def check(self) -> None:
        from filmgate.pipeline.canary import check_canary
        from filmgate.pipeline.loading.model_memory import settle

        with _explained():
            # Each is loaded once to learn its limits, the default last, so that it is the one that stays.
            for name in reversed(self.models):
                self._shelf.take(name)
            check_canary(*self._shelf.take(self.models[0]))
        settle()
        self._is_sound = True

    def render(self, task: RenderTask) -> Generator[Output, None, None]:
        stop = Event()
        produce = partial(self._produce, task, stop)
        yield from pull(produce, capacity=_OUTPUTS_AHEAD, stop=stop.set, name="filmgate-render")

    def _produce(self, task: RenderTask, stop: Event, emit: Emit) -> None:
        from filmgate.pipeline.requests import to_clip_request

        control = Control(partial(_report, emit), stop)
        with _explained():
            if task.spec.model not in self._shelf.loaded:
                emit(Step(Stage.LOAD, 0, 1))
            model, renderer = self._shelf.take(task.spec.model)
            model.limits.check(task.spec)
            request = to_clip_request(task.spec, _read_image(task))
            denoised = _denoise(model, renderer, request, task, emit, control)
            self._finish(renderer, denoised, request, emit, control)

    def _finish(
        self,
        renderer: "Renderer",
        denoised: "DenoisedClip",
        request: "ClipRequest",
        emit: Emit,
        control: Control,
    ) -> None:
        from filmgate.pipeline.clip_writer import ClipOutputs

        outputs = ClipOutputs(
            metadata={"seed": str(request.seed)},
            on_fragment=lambda data: emit(Fragment(data)),
            on_still=lambda kind, data: emit(Still(kind, data)),
            on_spool=lambda spool: emit(EarlyClip(spool.head_bytes, spool.follow, spool.head, spool.close)),
        )
        emit(Step(Stage.DECODE, 0, request.frames))
        spool = renderer.finish(denoised, request, None, outputs, control).clip.spool
        assert spool is not None
        emit(ClipSource(spool.chunks, spool.close))

    def _load(self, name: str) -> "Loaded":
        from filmgate.pipeline.loading.loader import load_model
        from filmgate.pipeline.render import Renderer

        model = load_model(self._locations[name], self._settings)
        self._cards.setdefault(name, ModelCard(name, "worker", int(time.time()), model.limits, UNKNOWN_RATES))
        adopt_loggers()
        return model, Renderer(model, self._settings, is_reused=True)


def _unload(loaded: "Loaded") -> None:
    from filmgate.pipeline.loading.model_memory import release

    release(loaded[0])


def _report(emit: Emit, progress: Progress) -> None:
    stage = _STAGES.get(progress.stage)
    if stage is not None and (progress.done or stage is not Stage.DECODE):
        emit(Step(stage, progress.done, progress.total))


def _denoise(
    model: "VideoModel",
    renderer: "Renderer",
    request: "ClipRequest",
    task: RenderTask,
    emit: Emit,
    control: Control,
) -> "DenoisedClip":
    """The latents: of an earlier attempt if there are any, else new ones, handed over to be kept."""
    from filmgate.pipeline.denoise.checkpoint import pack_latents, unpack_latents
    from filmgate.pipeline.text.encode import Prompt

    if task.read_latents is not None:
        return unpack_latents(b"".join(task.read_latents()), model.placement.device)
    spec = task.spec
    prompt = Prompt(spec.prompt, spec.negative_prompt or "", request.guidance, scope=task.tenant_id or "")
    denoised = renderer.denoise(prompt, request, control)
    emit(Latents([pack_latents(denoised)]))
    return denoised


def _read_image(task: RenderTask) -> bytes | None:
    return b"".join(task.read_source()) if task.read_source is not None else None


@contextmanager
def _explained() -> Iterator[None]:
    """A CUDA error sticks to the process: every call after it fails too, whatever the job."""
    try:
        yield
    except FilmgateError:
        raise
    except Exception as exc:
        is_sticky = type(exc).__name__ == "AcceleratorError" or "CUDA error" in str(exc)
        if is_sticky:
            raise DeviceError(f"the GPU failed ({type(exc).__name__}); this worker ends") from exc
        raise
