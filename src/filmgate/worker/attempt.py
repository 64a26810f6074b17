"""One attempt at a job, on the render thread: outputs of the runner go to the store as they appear."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial

from filmgate.errors import EncodeError, ObjectNotFound, StoreUnavailable
from filmgate.jobs import Job, Lease, Progress, Stage, StageSeconds
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
    Picture,
    PictureKind,
    RenderTask,
    Runner,
    Step,
)
from filmgate.worker.early_upload import EarlyUpload
from filmgate.worker.heartbeat import Lifeline


@dataclass(slots=True)
class StageTimer:
    """How long each stage took, from its opening to the opening of the next."""

    seconds: StageSeconds = field(default_factory=StageSeconds)
    stage: Stage | None = None
    _since: float = 0.0

    def open(self, stage: Stage | None) -> None:
        """The stage before ends now; None ends the last."""
        now = time.monotonic()
        if self.stage is not None:
            spent = getattr(self.seconds, self.stage) + now - self._since
            self.seconds = replace(self.seconds, **{self.stage.value: spent})
        self.stage, self._since = stage, now


@dataclass(frozen=True, slots=True)
class Rendering:
    """A rendered job on its way to the store: what is left to do needs no GPU."""

    lease: Lease
    lifeline: Lifeline
    clip: ClipSource
    timer: StageTimer
    pictures: dict[PictureKind, bytes]
    early: EarlyUpload | None = None
    fragments: int = 0

    def close(self) -> None:
        """Stop the early upload if it still runs, and free the clip. Idempotent."""
        if self.early is not None:
            self.early.cancel()
        self.clip.close()


class Attempt:
    """Renders one lease.

    Fragments, previews, the checkpoint and the early upload are a help, not a duty: a store that fails them
    costs live playback, a second denoising or a second upload, never the job.
    """

    def __init__(self, lease: Lease, lifeline: Lifeline, store: ObjectStore, log: Log) -> None:
        self._lease = lease
        self._lifeline = lifeline
        self._store = store
        self._log = log
        self._timer = StageTimer()
        self._pictures: dict[PictureKind, bytes] = {}
        self._early: EarlyUpload | None = None
        self._clip: ClipSource | None = None
        self._fragments = 0
        self._is_live = True

    def render(self, runner: Runner, check: Callable[[], None]) -> Rendering:
        """Pull the runner to its end; `check` raises between outputs when the work should stop."""
        try:
            clip = self._pull(runner, check)
        except BaseException:
            if self._early is not None:
                self._early.cancel()
            if self._clip is not None:
                self._clip.close()
            raise
        self._timer.open(None)
        return Rendering(
            self._lease,
            self._lifeline,
            clip,
            self._timer,
            self._pictures,
            self._early,
            fragments=self._fragments,
        )

    def _pull(self, runner: Runner, check: Callable[[], None]) -> ClipSource:
        # Closing stops the runner where it is when anything here raises.
        with closing(runner.render(self._task())) as outputs:
            for output in outputs:
                if isinstance(output, ClipSource):
                    self._clip = output
                check()
                self._handle(output)
        if self._clip is None:
            raise EncodeError("the runner ended without a clip")
        return self._clip

    def _task(self) -> RenderTask:
        job = self._lease.job
        checkpoint = ObjectName(job.tenant_id, job.id, CHECKPOINT_PART)
        return RenderTask(
            job_id=job.id,
            spec=job.spec,
            read_source=find_source(self._store, job),
            read_latents=partial(self._store.read, checkpoint)
            if _is_there(self._store, checkpoint)
            else None,
            tenant_id=job.tenant_id,
        )

    def _handle(self, output: Output) -> None:
        match output:
            case EarlyClip():
                job, part = self._lease.job, clip_part(self._lease.fence)
                name = ObjectName(job.tenant_id, job.id, part)
                self._early = EarlyUpload(self._store, name, output, self._log)
            case Step():
                self._step(output)
            case Latents(chunks):
                self._offer(CHECKPOINT_PART, chunks, is_durable=True)
            case Fragment(data):
                # A stream with a hole cannot be played: after one failure the rest is not offered.
                part = live_part(self._lease.fence, self._fragments)
                self._is_live = self._is_live and self._offer(part, [data])
                self._fragments += 1
            case Picture(PictureKind.PREVIEW, data):
                self._offer(picture_part(PictureKind.PREVIEW, self._lease.fence), [data])
            case Picture(kind, data):
                self._pictures[kind] = data

    def _step(self, step: Step) -> None:
        if step.stage is not self._timer.stage:
            self._timer.open(step.stage)
            self._log.info("stage opened", stage=step.stage)
        fraction = self._lease.job.predicted.fraction_done(step.stage, step.done, step.total)
        self._lifeline.report(Progress(step.stage, step.done, step.total, fraction))

    def _offer(self, part: str, chunks: Iterable[bytes], *, is_durable: bool = False) -> bool:
        job = self._lease.job
        try:
            self._store.put(ObjectName(job.tenant_id, job.id, part), chunks, is_durable=is_durable)
        except StoreUnavailable as exc:
            self._log.warning("the store refused a part the job can do without", code=exc.code)
            return False
        return True


def find_source(store: ObjectStore, job: Job) -> Callable[[], Iterator[bytes]] | None:
    """How to read what the clip starts from; None where it starts from words alone."""
    source = job.spec.source
    if source is None or source.part is None:
        return None
    return partial(store.read, ObjectName(job.tenant_id, source.job_id or job.id, source.part))


def _is_there(store: ObjectStore, name: ObjectName) -> bool:
    try:
        store.stat(name)
    except ObjectNotFound:
        return False
    return True
