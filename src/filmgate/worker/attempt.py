"""One attempt at a job, on its own thread: stores the outputs of the runner as they appear, then the clip."""

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial

from filmgate.errors import EncodeError, FilmgateError, KeyRefused
from filmgate.jobs import Clip, Job, Lease, Progress, Stage, StageSeconds, StillKind
from filmgate.pipeline.control import Step
from filmgate.store.base import (
    CHECKPOINT_PART,
    ObjectName,
    ObjectStore,
    StoredObject,
    clip_part,
    exists,
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
    Still,
)
from filmgate.worker.heartbeat import Heartbeat
from filmgate.worker.publisher import STORE_OUTAGES, retry
from filmgate.worker.tracing import AttemptTrace
from filmgate.worker.turns import DeviceTurn


class EarlyUpload:
    """Uploads a clip while it is encoded, on its own thread: little is left to send after the last frame.

    Best effort: the ClipSource can be uploaded instead.
    """

    def __init__(self, store: ObjectStore, name: ObjectName, clip: EarlyClip, log: Log) -> None:
        self._log = log
        self._clip = clip
        pool = ThreadPoolExecutor(1, thread_name_prefix="early-upload")
        self._future: Future[StoredObject] | None = pool.submit(
            store.put, name, clip.open_body(), late_head=clip.read_head, head_bytes=clip.head_bytes
        )
        pool.shutdown(wait=False)

    def cancel(self) -> None:
        """Cancel the clip and wait for the upload to stop. An object already stored stays. Idempotent."""
        self._clip.cancel()
        if self._future is not None:
            wait([self._future])

    def take(self) -> StoredObject | None:
        """Wait for the upload and return the object, or None if it failed. A second call returns None."""
        future, self._future = self._future, None
        if future is None:
            return None
        try:
            return future.result()
        except FilmgateError as exc:
            self._log.warning("early upload failed; uploading the finished clip", error=exc)
            return None


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


class Attempt:
    """One attempt at a leased job: renders it, then uploads the clip, which needs no GPU.

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
        self.lease = lease
        self.heartbeat = heartbeat
        self.turn = turn
        self.log = log
        self.trace = trace
        self.timer = StageTimer(trace)
        self._store = store
        self._encoding_since = 0.0
        self._stills: dict[StillKind, bytes] = {}
        self._early: EarlyUpload | None = None
        self._clip: ClipSource | None = None
        self._fragments = 0
        self._is_live = True

    def render(self, runner: Runner) -> None:
        """Pull all outputs of the runner. The turn's `check` runs between outputs and raises to stop."""
        try:
            self._pull(runner)
        except BaseException as exc:
            self._close(exc)
            raise
        # After it left the device, the job only encodes, in parallel with the next job.
        self.turn.leave()
        self.timer.open(None, self.turn.left_at)

    def upload(self, retry_seconds: float) -> Clip:
        """Store the clip and its stills, and free the clip.

        Raises StoreUnavailable or KeyringUnavailable after `retry_seconds` without success. The turn's
        `check` runs before each try and raises to stop.
        """
        self._report(Step(Stage.UPLOAD, 0, 1))
        ends_at = time.monotonic() + retry_seconds
        try:
            clip = retry(
                self._store_clip, STORE_OUTAGES, self.log, ends_at=lambda: ends_at, check=self.turn.check
            )
        except BaseException as exc:
            self._close(exc)
            raise
        self._close()
        return clip

    def _pull(self, runner: Runner) -> None:
        # An error in the loop closes the stream, which stops the runner.
        with closing(runner.render(self._task())) as outputs:
            for output in outputs:
                if isinstance(output, ClipSource):
                    self._clip = output
                    self.trace.record("encode", self._encoding_since, time.monotonic())
                self.turn.check()
                self._handle(output)
        if self._clip is None:
            raise EncodeError("the runner ended without a clip")

    def _task(self) -> RenderTask:
        job = self.lease.job
        checkpoint = self._name(CHECKPOINT_PART)
        # Only an earlier attempt can have stored one.
        has_checkpoint = self.lease.fence > 1 and exists(self._store, checkpoint)
        return RenderTask(
            spec=job.spec,
            tenant_id=job.tenant_id,
            read_source=find_source(self._store, job),
            read_latents=partial(self._store.read, checkpoint) if has_checkpoint else None,
            turn=self.turn,
        )

    def _handle(self, output: Output) -> None:
        match output:
            case EarlyClip():
                self._encoding_since = time.monotonic()  # the encoder is open
                name = self._name(clip_part(self.lease.fence))
                self._early = EarlyUpload(self._store, name, output, self.log)
            case Step():
                self._report(output)
            case Latents(chunks):
                self.turn.checkpoint_at = time.monotonic()
                with self.trace.span("checkpoint"):
                    self._try_to_store(CHECKPOINT_PART, chunks, is_durable=True)
            case Fragment(data):
                # A stream with a gap cannot be played: after the first failure no fragment is stored.
                part = live_part(self.lease.fence, self._fragments)
                self._is_live = self._is_live and self._try_to_store(part, [data])
                self._fragments += 1
            case Still(StillKind.PREVIEW, data):
                self._try_to_store(picture_part(StillKind.PREVIEW, self.lease.fence), [data])
            case Still(kind, data):
                self._stills[kind] = data

    def _report(self, step: Step) -> None:
        if step.stage is not self.timer.stage:
            self.timer.open(step.stage)
            self.log.info("stage started", stage=step.stage)
            if step.stage is Stage.DECODE:
                self.turn.announce_end()
        fraction = self.lease.job.predicted.fraction_done(step.stage, step.done, step.total)
        self.heartbeat.report(Progress(step.stage, step.done, step.total, fraction))

    def _try_to_store(self, part: str, chunks: Iterable[bytes], *, is_durable: bool = False) -> bool:
        try:
            self._store.put(self._name(part), chunks, is_durable=is_durable)
        except (*STORE_OUTAGES, KeyRefused) as exc:
            self.log.warning("could not store an optional object; the job continues", code=exc.code)
            return False
        return True

    def _store_clip(self) -> Clip:
        """Store the stills, and the clip unless its early upload succeeded. Can be repeated."""
        assert self._clip is not None
        parts = {kind: picture_part(kind, self.lease.fence) for kind in self._stills}
        for kind, data in self._stills.items():
            self._store.put(self._name(parts[kind]), [data])
        name = self._name(clip_part(self.lease.fence))
        stored = self._early.take() if self._early is not None else None
        if stored is None:
            stored = self._store.put(name, self._clip.open_chunks())
        return Clip(
            part=name.part,
            size_bytes=stored.size_bytes,
            # An early upload has no digest, because SHA-256 needs the head first.
            sha256=stored.sha256 or _digest(self._clip.open_chunks()),
            thumbnail=parts.get(StillKind.THUMBNAIL),
            spritesheet=parts.get(StillKind.SPRITESHEET),
            fragments=self._fragments,
            reduced_to=self._clip.reduced_to,
        )

    def _close(self, error: BaseException | None = None) -> None:
        """End the current stage, stop the early upload if it still runs, and free the clip. Idempotent."""
        self.timer.open(None, error=error)
        if self._early is not None:
            self._early.cancel()
        if self._clip is not None:
            self._clip.close()

    def _name(self, part: str) -> ObjectName:
        return ObjectName(self.lease.job.tenant_id, self.lease.job.id, part)


def find_source(store: ObjectStore, job: Job) -> Callable[[], Iterator[bytes]] | None:
    """Return a reader of the image or video that the clip starts from; None if it starts from text only."""
    source = job.spec.source
    if source is None or source.part is None:
        return None
    owner = job.id if job.spec.has_image else source.job_id or job.id
    return partial(store.read, ObjectName(job.tenant_id, owner, source.part))


def _digest(chunks: Iterable[bytes]) -> str:
    sha256 = hashlib.sha256()
    for chunk in chunks:
        sha256.update(chunk)
    return sha256.hexdigest()
