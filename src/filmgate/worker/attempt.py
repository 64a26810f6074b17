"""One attempt at a job, on its own thread: stores the outputs of the runner as they appear."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial

from filmgate.errors import EncodeError, KeyRefused, KeyringUnavailable, ObjectNotFound, StoreUnavailable
from filmgate.jobs import Job, Lease, Progress, Stage, StageSeconds, StillKind
from filmgate.store.base import (
    CHECKPOINT_PART,
    ObjectName,
    ObjectStore,
    clip_part,
    live_part,
    picture_part,
)
from filmgate.telemetry.logs import Log
from filmgate.worker.base import (
    ClipSource,
    EarlyClip,
    Fragment,
    Latents,
    Output,
    RenderTask,
    Runner,
    Step,
    Still,
)
from filmgate.worker.early_upload import EarlyUpload
from filmgate.worker.heartbeat import Heartbeat
from filmgate.worker.tracing import AttemptTrace
from filmgate.worker.turns import DeviceTurn


@dataclass(slots=True)
class StageTimer:
    """Measures each stage, from its start to the start of the next one, and records its span."""

    trace: AttemptTrace
    seconds: StageSeconds = field(default_factory=StageSeconds)
    stage: Stage | None = None
    _since: float = 0.0

    def open(self, stage: Stage | None, at: float | None = None, error: BaseException | None = None) -> None:
        """End the current stage and start the next one, now or at a time before; None only ends it.

        An error is why the current stage ends too early.
        """
        now = at if at is not None else time.monotonic()
        if self.stage is not None:
            spent = getattr(self.seconds, self.stage) + max(now - self._since, 0.0)
            self.seconds = replace(self.seconds, **{self.stage.value: spent})
            self.trace.record(self.stage, self._since, max(now, self._since), error)
        self.stage, self._since = stage, now


@dataclass(frozen=True, slots=True)
class Rendering:
    """A rendered job before its upload. The rest of the work needs no GPU."""

    lease: Lease
    heartbeat: Heartbeat
    clip: ClipSource
    timer: StageTimer
    stills: dict[StillKind, bytes]
    early: EarlyUpload | None = None
    fragments: int = 0

    @property
    def trace(self) -> AttemptTrace:
        return self.timer.trace

    def close(self) -> None:
        """Stop the early upload if it still runs, and free the clip. Idempotent."""
        if self.early is not None:
            self.early.cancel()
        self.clip.close()


class Attempt:
    """Renders one lease.

    Fragments, previews, the latents checkpoint and the early upload are best effort. If the store rejects
    them, the job loses live playback or repeats some work, but it does not fail.
    """

    def __init__(
        self,
        lease: Lease,
        heartbeat: Heartbeat,
        turn: DeviceTurn,
        store: ObjectStore,
        log: Log,
        trace: AttemptTrace,
    ) -> None:
        self._lease = lease
        self._heartbeat = heartbeat
        self._turn = turn
        self._store = store
        self._log = log
        self._timer = StageTimer(trace)
        self._encoding_since = 0.0
        self._stills: dict[StillKind, bytes] = {}
        self._early: EarlyUpload | None = None
        self._clip: ClipSource | None = None
        self._fragments = 0
        self._is_live = True

    def render(self, runner: Runner) -> Rendering:
        """Pull all outputs of the runner. The turn's `check` runs between outputs and raises to stop."""
        try:
            clip = self._pull(runner)
        except BaseException as exc:
            self._timer.open(None, error=exc)
            if self._early is not None:
                self._early.cancel()
            if self._clip is not None:
                self._clip.close()
            raise
        # After it left the device, the job only encodes, beside the next one.
        self._timer.open(None, self._turn.left_at)
        return Rendering(
            self._lease,
            self._heartbeat,
            clip,
            self._timer,
            self._stills,
            self._early,
            fragments=self._fragments,
        )

    def _pull(self, runner: Runner) -> ClipSource:
        # An error in the loop closes the stream, which stops the runner.
        with closing(runner.render(self._task())) as outputs:
            for output in outputs:
                if isinstance(output, ClipSource):
                    self._clip = output
                    self._timer.trace.record("encode", self._encoding_since, time.monotonic())
                self._turn.check()
                self._handle(output)
        if self._clip is None:
            raise EncodeError("the runner ended without a clip")
        return self._clip

    def _task(self) -> RenderTask:
        job = self._lease.job
        checkpoint = ObjectName(job.tenant_id, job.id, CHECKPOINT_PART)
        has_checkpoint = _exists(self._store, checkpoint)
        return RenderTask(
            job_id=job.id,
            spec=job.spec,
            tenant_id=job.tenant_id,
            read_source=find_source(self._store, job),
            read_latents=partial(self._store.read, checkpoint) if has_checkpoint else None,
            turn=self._turn,
        )

    def _handle(self, output: Output) -> None:
        match output:
            case EarlyClip():
                self._encoding_since = time.monotonic()  # the encoder is open
                self._early = EarlyUpload(
                    self._store, self._name(clip_part(self._lease.fence)), output, self._log
                )
            case Step():
                self._step(output)
            case Latents(chunks):
                self._turn.checkpoint_at = time.monotonic()
                with self._timer.trace.span("checkpoint"):
                    self._try_to_store(CHECKPOINT_PART, chunks, is_durable=True)
            case Fragment(data):
                # A stream with a gap cannot be played: after the first failure no fragment is stored.
                part = live_part(self._lease.fence, self._fragments)
                self._is_live = self._is_live and self._try_to_store(part, [data])
                self._fragments += 1
            case Still(StillKind.PREVIEW, data):
                self._try_to_store(picture_part(StillKind.PREVIEW, self._lease.fence), [data])
            case Still(kind, data):
                self._stills[kind] = data

    def _step(self, step: Step) -> None:
        if step.stage is not self._timer.stage:
            self._timer.open(step.stage)
            self._log.info("stage started", stage=step.stage)
            if step.stage is Stage.DECODE:
                self._turn.announce_end()
        fraction = self._lease.job.predicted.fraction_done(step.stage, step.done, step.total)
        self._heartbeat.report(Progress(step.stage, step.done, step.total, fraction))

    def _try_to_store(self, part: str, chunks: Iterable[bytes], *, is_durable: bool = False) -> bool:
        try:
            self._store.put(self._name(part), chunks, is_durable=is_durable)
        except (StoreUnavailable, KeyringUnavailable, KeyRefused) as exc:
            self._log.warning("could not store an optional object; the job continues", code=exc.code)
            return False
        return True

    def _name(self, part: str) -> ObjectName:
        return ObjectName(self._lease.job.tenant_id, self._lease.job.id, part)


def find_source(store: ObjectStore, job: Job) -> Callable[[], Iterator[bytes]] | None:
    """Return a reader of the image or video that the clip starts from; None if it starts from text alone."""
    source = job.spec.source
    if source is None or source.part is None:
        return None
    owner = job.id if job.spec.has_image else source.job_id or job.id
    return partial(store.read, ObjectName(job.tenant_id, owner, source.part))


def _exists(store: ObjectStore, name: ObjectName) -> bool:
    try:
        store.stat(name)
    except ObjectNotFound:
        return False
    return True
