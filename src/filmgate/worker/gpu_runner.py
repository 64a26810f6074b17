"""The runner on our own GPU: renders with the frame pipeline and swaps models on one device."""

import time
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from threading import Event

from prometheus_client import CollectorRegistry

from filmgate.errors import DeviceBroken, DeviceError, FilmgateError, ObjectNotFound
from filmgate.jobs import Route, Stage
from filmgate.models.cards import UNKNOWN_RATES, ModelCard
from filmgate.models.weights.entry import weights_digest
from filmgate.pipeline.clip_writer import ClipOutputs
from filmgate.pipeline.control import Control, Step
from filmgate.pipeline.denoise.denoise import DenoisedClip, pack_latents, unpack_latents
from filmgate.pipeline.loading.adapters import AdapterCache
from filmgate.pipeline.loading.loader import VideoModel, load_model, source_folder
from filmgate.pipeline.loading.memory import (
    budget_bytes,
    check_gpu,
    choose_device,
    collect_and_freeze,
    estimate_bytes,
    find_gpu_uuid,
    name_device,
    release,
)
from filmgate.pipeline.render import Renderer
from filmgate.pipeline.requests import ClipRequest, to_clip_request
from filmgate.pipeline.transfer.channel import pull
from filmgate.pipeline.wipe import DeviceMemory, wiping
from filmgate.scheduling.workers import GpuStatus
from filmgate.settings import PipelineSettings
from filmgate.telemetry.gpu_metrics import GpuState
from filmgate.telemetry.logs import Log, adopt_loggers
from filmgate.telemetry.nvml import find_gpu, opened_nvml
from filmgate.telemetry.periodic import Periodic
from filmgate.worker.base import ClipSource, EarlyClip, Fragment, Latents, Output, RenderTask, Still
from filmgate.worker.gpu_watch import GpuWatch
from filmgate.worker.loaded_models import LoadedModels
from filmgate.worker.metrics import WorkerMetrics
from filmgate.worker.self_check import GoldenClips, MemoryGoldenClips, SelfCheck
from filmgate.worker.tracing import GpuReadings
from filmgate.worker.turns import MAX_JOBS

log = Log("worker")

Emit = Callable[[Output], None]
Loaded = tuple[VideoModel, Renderer]
_OUTPUTS_AHEAD = 4
_UNLIMITED_BYTES = 1 << 62


@dataclass(frozen=True, slots=True)
class Weights:
    """Where a runner gets its weights.

    `acquire` returns the folder of a location, pulled if necessary; it is kept until the stack closes.
    """

    acquire: Callable[[str, ExitStack], str] = lambda location, _held: location
    adapters: AdapterCache | None = None


class GpuRunner:
    """Renders on one device. `models` maps the names clients use to shipped models, folders, hub ids or URLs.

    A model is pulled before it is loaded, and may be evicted from the disk once it is unloaded.
    """

    def __init__(
        self,
        models: Mapping[str, str],
        settings: PipelineSettings,
        metrics: WorkerMetrics | None = None,
        goldens: GoldenClips | None = None,
        watch_seconds: float = 1.0,
        weights: Weights | None = None,
    ) -> None:
        self._weights = weights or Weights()
        self._folders: dict[str, tuple[str, ExitStack]] = {}  # of loaded models, each with what keeps it
        # The threads are kept because cuDNN keeps its plans by thread: a new one spends 0.05 s on them.
        self._threads = ThreadPoolExecutor(MAX_JOBS, thread_name_prefix="render")
        self._locations = dict(models)
        self._settings = settings
        self._metrics = metrics or WorkerMetrics(CollectorRegistry())
        self._self_check = SelfCheck(goldens or MemoryGoldenClips(), self._metrics)
        self._watch_seconds = watch_seconds
        check_gpu(settings)
        self._device = name_device(settings)
        self._memory = DeviceMemory(choose_device(settings.device))
        self.gpu_uuid = find_gpu_uuid(settings)
        self._watch: GpuWatch | None = None
        self._readings = GpuReadings(self.gpu_uuid or None)
        self._cards: dict[str, ModelCard] = {}
        self._is_checked = False
        budget = budget_bytes(settings)
        self._loaded: LoadedModels[Loaded] = LoadedModels(
            _UNLIMITED_BYTES if budget is None else budget,
            estimate=lambda name: estimate_bytes(self._folder(name), settings, budget),
            load=self._load,
            unload=self._unload,
            forget=self._forget_folder,
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
        return tuple(self._cards.values()) if self._is_checked else ()

    def check(self) -> None:
        with _device_errors():
            # Loads each model once to read its limits. The default (the first) is last, so it stays loaded.
            for name in reversed(self.models):
                self._loaded.get(name)
            self._check_model(self.models[0], self._self_check.run)
        collect_and_freeze()
        self._is_checked = True

    @property
    def gpu(self) -> GpuReadings:
        return self._readings

    @property
    def speed(self) -> float:
        return self._watch.speed if self._watch is not None else 1.0

    @property
    def gpu_status(self) -> GpuStatus | None:
        return self._watch.status if self._watch is not None else None

    @property
    def gpu_state(self) -> GpuState | None:
        """The last reading of the GPU, for metrics; None on a CPU."""
        return self._watch.state if self._watch is not None else None

    def recheck(self) -> None:
        with _device_errors():
            for name in self._loaded.names:
                self._check_model(name, self._self_check.run_again)

    def _check_model(self, name: str, check: Callable[[str, str, VideoModel, Renderer], None]) -> None:
        with self._loaded.using(name) as (model, renderer):
            check(name, self._cards[name].version, model, renderer)

    @contextmanager
    def watched(self, on_broken: Callable[[DeviceBroken], None]) -> Iterator[None]:
        with opened_nvml() as has_nvml:
            gpu = find_gpu(self.gpu_uuid) if has_nvml and self.gpu_uuid else None
            if gpu is None:
                if self.gpu_uuid:
                    log.warning("NVML does not list this GPU: its errors are not watched", gpu=self.gpu_uuid)
                yield
                return
            watch = self._watch = GpuWatch(gpu, on_broken, self._readings)
            watch.require_healthy()
            with Periodic("GPU watch", watch.check, self._watch_seconds):
                yield

    def render(self, task: RenderTask) -> Generator[Output, None, None]:
        stop = Event()
        produce = partial(self._produce, task, stop)
        yield from pull(produce, capacity=_OUTPUTS_AHEAD, stop=stop.set, threads=self._threads)

    def _produce(self, task: RenderTask, stop: Event, emit: Emit) -> None:
        control = _TaskControl(task, stop, emit, self._memory, self._metrics)
        with _device_errors():
            if task.spec.model not in self._loaded.names:
                control.report(Stage.LOAD, 0, 1)
            # The task that uses the other model may have to return to the device, to decode again.
            with self._loaded.using(task.spec.model, task.turn.step_aside) as (model, renderer):
                if not renderer.can_prepare or task.read_latents is not None:
                    control.enter_device()
                model.limits.check(task.spec)
                request = to_clip_request(task.spec, _read_image(task), task.tenant_id or "")
                denoised = _read_checkpoint(task, model)
                if denoised is not None:
                    emit(Step(Stage.DECODE, 0, request.frames))
                    with wiping(denoised.latents):
                        _finish(renderer, denoised, request, control)
                    return
                denoised = renderer.queue_denoising(request, control)
                # The device still runs the last step: with decode, that is the time to prepare the next job.
                task.turn.announce_end()
                with (
                    wiping(denoised.latents),
                    ThreadPoolExecutor(1, thread_name_prefix="filmgate-checkpoint") as thread,
                ):
                    # The device goes on to decode while the latents are copied.
                    control.checkpoint = thread.submit(_emit_latents, denoised, request, emit)
                    _finish(renderer, denoised, request, control)

    def _load(self, name: str) -> Loaded:
        started = time.monotonic()
        log.info("loading a model", model=name)  # minutes for a large one, in which nothing else is logged
        # Error messages name the model as clients do.
        model = replace(load_model(self._folder(name), self._settings), name=name)
        card = self._cards.get(name)
        # The files of a version do not change while a process runs: they are read once.
        version = card.version if card is not None else _version_of(model)
        self._cards.setdefault(
            name,
            ModelCard(name, "worker", int(time.time()), model.limits, UNKNOWN_RATES, version=version),
        )
        self._self_check.remember(name, model)
        adopt_loggers()
        renderer = Renderer(model, self._settings, is_reused=True, adapters=self._weights.adapters)
        self._metrics.loaded(name, version, time.monotonic() - started)
        return model, renderer

    def _unload(self, name: str, loaded: Loaded) -> None:
        model, _ = loaded
        self._metrics.unloaded(name, self._cards[name].version)
        release(model.pipe, model.placement.device)

    def _forget_folder(self, name: str) -> None:
        """Let the cache evict the model."""
        if name in self._folders:
            self._folders.pop(name)[1].close()

    def close(self) -> None:
        """Let the cache evict all models. Renders nothing after that."""
        for name in list(self._folders):
            self._forget_folder(name)

    def _folder(self, name: str) -> str:
        """The folder of a model, pulled if necessary and kept until the model is unloaded."""
        if name not in self._folders:
            with ExitStack() as held:
                folder = self._weights.acquire(self._locations[name], held)
                self._folders[name] = (folder, held.pop_all())
        return self._folders[name][0]


class _TaskControl(Control):
    """Lets a task follow another one on the device, and emits its outputs in the order the worker expects.

    A task reports nothing before its turn, and nothing of its decode before its latents.
    """

    def __init__(
        self, task: RenderTask, stop: Event, emit: Emit, memory: DeviceMemory, metrics: WorkerMetrics
    ) -> None:
        super().__init__(stop=stop)
        self._task = task
        self._memory = memory
        self._metrics = metrics
        self._held: list[Step] = []
        self.emit = emit
        self.reduced_to: str | None = None
        self.checkpoint: Future[None] | None = None  # emits the latents

    def report(self, stage: Stage, done: int, total: int) -> None:
        step = Step(stage, done, total)
        if stage is Stage.DECODE:
            self.emit_decoded(step)
        elif self._task.turn.is_taken:
            self.emit(step)
        else:
            self._held.append(step)

    def emit_decoded(self, output: Output) -> None:
        """Emit an output of the decode stage. Raises the error of the checkpoint, if there was one."""
        if self.checkpoint is not None:
            self.checkpoint.result()
        self.emit(output)

    def prepare_device(self) -> None:
        self._memory.prepare_for(self._task.tenant_id)

    def enter_device(self) -> None:
        self._task.turn.take()
        while self._held:
            self.emit(self._held.pop(0))
        self._memory.switch_owner(self._task.tenant_id)

    def leave_device(self) -> None:
        self._task.turn.leave()

    def step_down(self, rung: str) -> None:
        self.reduced_to = rung
        self._metrics.stepped_down(self._task.spec.model, rung)


def _emit_latents(denoised: DenoisedClip, request: ClipRequest, emit: Emit) -> None:
    emit(Latents([pack_latents(denoised)]))
    emit(Step(Stage.DECODE, 0, request.frames))


def _version_of(model: VideoModel) -> str:
    """The digest of the files, and how their weights are held in memory if that changes them."""
    weights = model.placement.weights
    return weights_digest(source_folder(model)) + ("" if weights == "full" else f"-{weights}")


def _read_image(task: RenderTask) -> bytes | None:
    return b"".join(task.read_source()) if task.read_source is not None else None


def _read_checkpoint(task: RenderTask, model: VideoModel) -> DenoisedClip | None:
    if task.read_latents is None:
        return None
    try:
        packed = b"".join(task.read_latents())
    except ObjectNotFound:
        # A worker that lost this job can still delete the checkpoint, because its GPU was broken.
        log.warning("the latents checkpoint was deleted; denoising again", model=model.name)
        return None
    return unpack_latents(packed, model.placement.device)


def _finish(renderer: Renderer, denoised: DenoisedClip, request: ClipRequest, control: _TaskControl) -> None:
    emit = control.emit_decoded
    outputs = ClipOutputs(
        metadata={"seed": str(request.seed)},
        on_fragment=lambda data: emit(Fragment(data)),
        on_still=lambda kind, data: emit(Still(kind, data)),
        on_spool=lambda spool: control.emit(
            EarlyClip(spool.head_bytes, spool.follow, spool.head, spool.close)
        ),
    )
    spool = renderer.finish(denoised, request, None, outputs, control).clip.spool
    assert spool is not None
    emit(ClipSource(spool.chunks, spool.close, reduced_to=control.reduced_to))


@contextmanager
def _device_errors() -> Iterator[None]:
    """Raise DeviceError for a CUDA error: after one, every CUDA call in this process fails."""
    try:
        yield
    except FilmgateError:
        raise
    except Exception as exc:
        if type(exc).__name__ == "AcceleratorError" or "CUDA error" in str(exc):
            raise DeviceError(f"the GPU failed ({type(exc).__name__}); the worker exits") from exc
        raise
