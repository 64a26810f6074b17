"""The end of a job, on the upload thread: clip to the store, word to the queue, scraps away."""

import time
from collections import deque
from collections.abc import Callable
from contextlib import closing
from typing import TypeVar

from filmgate.errors import QueueUnavailable, StoreUnavailable
from filmgate.jobs import Clip, Job, JobState, Lease, Progress, Stage
from filmgate.scheduling.base import Finish, JobQueue, Setback
from filmgate.settings import WorkerSettings
from filmgate.store.base import (
    CHECKPOINT_PART,
    LIVE_PREFIX,
    ObjectName,
    ObjectStore,
    clip_part,
    live_prefix,
    picture_part,
)
from filmgate.store.metering import digest
from filmgate.telemetry.logs import Log
from filmgate.worker.attempt import Rendering
from filmgate.worker.base import PictureKind

_T = TypeVar("_T")
_LONGEST_PAUSE_SECONDS = 15.0
# Viewers are a poll or two behind the decoder: the last fragments stay until they have been read.
_LINGER_SECONDS = 3.0


class Publisher:
    """Makes clips durable and jobs final. A job is acknowledged only after its clip is in the store."""

    def __init__(self, queue: JobQueue, store: ObjectStore, settings: WorkerSettings) -> None:
        self._queue = queue
        self._store = store
        self._settings = settings
        self._lingering: deque[tuple[float, Lease]] = deque()

    def publish(self, rendering: Rendering, log: Log) -> Job:
        """Raises LeaseLost when another worker has the job, StoreUnavailable when patience ran out."""
        lease, lifeline, timer = rendering.lease, rendering.lifeline, rendering.timer
        timer.open(Stage.UPLOAD)
        fraction = lease.job.predicted.fraction_done(Stage.UPLOAD, 0, 1)
        lifeline.report(Progress(Stage.UPLOAD, 0, 1, fraction))
        with closing(rendering):
            clip = self.patiently(lambda: self._upload(rendering), lifeline.check, log)
        timer.open(None)
        return self.acknowledge(lease, Finish(clip, timer.seconds), log, is_watched=True)

    def acknowledge(self, lease: Lease, finish: Finish, log: Log, *, is_watched: bool = False) -> Job:
        """End the job with a clip that is in the store, and remove what led to it. Raises LeaseLost.

        What somebody may be watching live is removed a little later, by `tidy_fragments`.
        """
        job = self._insist(lambda: self._queue.complete(lease, finish))
        log.info("job ended", state=job.state, gpu_seconds=round(finish.measured.gpu_seconds, 3))
        if job.state is JobState.COMPLETED:
            scraps = [part for fence in range(1, lease.fence) for part in _parts_of(fence)]
            self._tidy(lease, CHECKPOINT_PART, _preview_of(lease.fence), *scraps)
            if is_watched:
                self._lingering.append((time.monotonic() + _LINGER_SECONDS, lease))
            else:
                self._tidy(lease, LIVE_PREFIX)
        else:
            self.discard(lease, is_final=True)
        return job

    def tidy_fragments(self, *, is_last: bool = False) -> None:
        """Remove the live fragments of clips that were published a while ago, or of all of them."""
        while self._lingering and (is_last or self._lingering[0][0] <= time.monotonic()):
            _, lease = self._lingering.popleft()
            self._tidy(lease, LIVE_PREFIX)

    def give_up(self, lease: Lease, setback: Setback) -> Job:
        """Tell the queue that the attempt failed and remove what it left. Raises LeaseLost."""
        job = self._insist(lambda: self._queue.give_up(lease, setback))
        self.discard(lease, is_final=job.state.is_final)
        return job

    def discard(self, lease: Lease, *, is_final: bool = False) -> None:
        """Remove what this attempt stored; the checkpoint stays for the next one unless there is none."""
        final = [CHECKPOINT_PART] if is_final else []
        self._tidy(lease, live_prefix(lease.fence), *_parts_of(lease.fence), *final)

    def drop_checkpoint(self, lease: Lease) -> None:
        """Make the next attempt denoise again."""
        self._tidy(lease, CHECKPOINT_PART)

    def _upload(self, rendering: Rendering) -> Clip:
        lease, job = rendering.lease, rendering.lease.job
        parts = {}
        for kind, data in rendering.pictures.items():
            parts[kind] = picture_part(kind, lease.fence)
            self._store.put(ObjectName(job.tenant_id, job.id, parts[kind]), [data])
        name = ObjectName(job.tenant_id, job.id, clip_part(lease.fence))
        stored = rendering.early.take() if rendering.early is not None else None
        if stored is None:
            stored = self._store.put(name, rendering.clip.open_chunks())
        return Clip(
            part=name.part,
            size_bytes=stored.size_bytes,
            # None where the head was stored last: a digest takes its bytes in order.
            sha256=stored.sha256 or digest(rendering.clip.open_chunks()),
            media_type=rendering.clip.media_type,
            thumbnail=parts.get(PictureKind.THUMBNAIL),
            spritesheet=parts.get(PictureKind.SPRITESHEET),
            fragments=rendering.fragments,
        )

    def patiently(self, action: Callable[[], _T], check: Callable[[], None], log: Log) -> _T:
        """Try until the store takes it: a full disk must not cost a finished clip."""
        pause, ends = 0.5, time.monotonic() + self._settings.store_patience_seconds
        while True:
            check()
            try:
                return action()
            except StoreUnavailable as exc:
                if time.monotonic() + pause > ends:
                    raise
                log.warning("the clip waits for the store", error=exc, seconds=pause)
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)

    def _insist(self, action: Callable[[], _T]) -> _T:
        """Try until the database answers: only it can say what became of the job."""
        pause = 0.2
        while True:
            try:
                return action()
            except QueueUnavailable:
                time.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)

    def _tidy(self, lease: Lease, *prefixes: str) -> None:
        """Remove scraps; what a failing store keeps goes with the job when it expires."""
        job = lease.job
        for prefix in prefixes:
            try:
                self._store.delete(job.tenant_id, job.id, prefix)
            except StoreUnavailable as exc:
                Log("worker", job_id=job.id, trace_id=job.trace_id).warning("scraps stay", code=exc.code)


def _parts_of(fence: int) -> list[str]:
    """What an attempt publishes."""
    return [clip_part(fence), *(picture_part(kind, fence) for kind in PictureKind)]


def _preview_of(fence: int) -> str:
    return picture_part(PictureKind.PREVIEW, fence)
