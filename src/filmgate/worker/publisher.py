"""The end of a job, on the upload thread: store the clip, complete the job, delete intermediate objects."""

import time
from collections import deque
from collections.abc import Callable
from contextlib import closing
from typing import TypeVar

from filmgate.errors import FilmgateError, KeyringUnavailable, QueueUnavailable, StoreUnavailable
from filmgate.jobs import Clip, Job, JobState, Lease, Progress, Stage, StillKind
from filmgate.scheduling.base import AttemptFailure, AttemptResult, JobQueue, Provenance
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

_T = TypeVar("_T")
_MAX_PAUSE_SECONDS = 15.0
# Viewers are one or two polls behind the decoder and still need the last fragments.
_FRAGMENT_GRACE_SECONDS = 3.0


class Publisher:
    """Stores clips and ends jobs. A job is completed only after its clip is durable in the store."""

    def __init__(
        self,
        queue: JobQueue,
        store: ObjectStore,
        settings: WorkerSettings,
        provenance: Provenance | None = None,
    ) -> None:
        self._queue = queue
        self._provenance = provenance or Provenance()
        self._store = store
        self._settings = settings
        self._old_fragments: deque[tuple[float, Lease]] = deque()

    def publish(self, rendering: Rendering, log: Log) -> Job:
        """Store the clip and complete the job.

        Raises LeaseLost if another worker has the job, and StoreUnavailable or KeyringUnavailable after
        `worker.store_retry_seconds` without success.
        """
        lease, heartbeat, timer = rendering.lease, rendering.heartbeat, rendering.timer
        timer.open(Stage.UPLOAD)
        fraction = lease.job.predicted.fraction_done(Stage.UPLOAD, 0, 1)
        heartbeat.report(Progress(Stage.UPLOAD, 0, 1, fraction))
        try:
            with closing(rendering):
                clip = self.retry_store(lambda: self._upload(rendering), heartbeat.check, log)
        except BaseException as exc:
            timer.open(None, error=exc)
            raise
        timer.open(None)
        with rendering.trace.span("publish", size_bytes=clip.size_bytes):
            return self.acknowledge(
                lease, AttemptResult(clip, timer.seconds, self._provenance), log, has_viewers=True
            )

    def acknowledge(self, lease: Lease, result: AttemptResult, log: Log, *, has_viewers: bool = False) -> Job:
        """Complete the job with a stored clip and delete its intermediate objects. Raises LeaseLost.

        If there may be viewers, `delete_old_fragments` deletes the live fragments a few seconds later.
        """
        job = self._retry_queue(lambda: self._queue.complete(lease, result))
        log.info("job ended", state=job.state, gpu_seconds=round(result.measured.gpu_seconds, 3))
        if job.state is not JobState.COMPLETED:
            self.discard(lease, is_final=True)
            return job
        earlier = [part for fence in range(1, lease.fence) for part in _parts_of(fence)]
        self._delete(lease, CHECKPOINT_PART, picture_part(StillKind.PREVIEW, lease.fence), *earlier)
        if has_viewers:
            self._old_fragments.append((time.monotonic() + _FRAGMENT_GRACE_SECONDS, lease))
        else:
            self._delete(lease, LIVE_PREFIX)
        return job

    def delete_old_fragments(self, *, is_last: bool = False) -> None:
        """Delete the live fragments of clips published a few seconds ago, or of all clips if `is_last`."""
        while self._old_fragments and (is_last or self._old_fragments[0][0] <= time.monotonic()):
            _, lease = self._old_fragments.popleft()
            self._delete(lease, LIVE_PREFIX)

    def fail_attempt(self, lease: Lease, failed: AttemptFailure) -> Job:
        """End a failed attempt in the queue and delete its objects. Raises LeaseLost."""
        job = self._retry_queue(lambda: self._queue.fail_attempt(lease, failed))
        self.discard(lease, is_final=job.state.is_final)
        return job

    def discard(self, lease: Lease, *, is_final: bool = False) -> None:
        """Delete the objects of this attempt. The checkpoint stays for the next one, unless `is_final`."""
        checkpoint = [CHECKPOINT_PART] if is_final else []
        self._delete(lease, live_prefix(lease.fence), *_parts_of(lease.fence), *checkpoint)

    def delete_checkpoint(self, lease: Lease) -> None:
        """Delete the latents checkpoint, so that the next attempt denoises again."""
        self._delete(lease, CHECKPOINT_PART)

    def retry_store(self, action: Callable[[], _T], check: Callable[[], None], log: Log) -> _T:
        """Retry until the store accepts the clip: a store that is full for a while must not lose a clip."""
        pause, ends = 0.5, time.monotonic() + self._settings.store_retry_seconds
        while True:
            check()
            try:
                return action()
            except (StoreUnavailable, KeyringUnavailable) as exc:
                if time.monotonic() + pause > ends:
                    raise
                log.warning("could not store the clip; retrying", error=exc, seconds=pause)
            time.sleep(pause)
            pause = min(pause * 2, _MAX_PAUSE_SECONDS)

    def _upload(self, rendering: Rendering) -> Clip:
        lease = rendering.lease
        parts = {kind: picture_part(kind, lease.fence) for kind in rendering.stills}
        for kind, data in rendering.stills.items():
            self._store.put(_name(lease, parts[kind]), [data])
        name = _name(lease, clip_part(lease.fence))
        stored = rendering.early.take() if rendering.early is not None else None
        if stored is None:
            stored = self._store.put(name, rendering.clip.open_chunks())
        return Clip(
            part=name.part,
            size_bytes=stored.size_bytes,
            # An early upload has no digest, because SHA-256 needs the head first.
            sha256=stored.sha256 or digest(rendering.clip.open_chunks()),
            media_type=rendering.clip.media_type,
            thumbnail=parts.get(StillKind.THUMBNAIL),
            spritesheet=parts.get(StillKind.SPRITESHEET),
            fragments=rendering.fragments,
            reduced_to=rendering.clip.reduced_to,
        )

    def _retry_queue(self, action: Callable[[], _T]) -> _T:
        """Retry until the database answers, because only the database has the state of the job."""
        pause = 0.2
        while True:
            try:
                return action()
            except QueueUnavailable:
                time.sleep(pause)
                pause = min(pause * 2, _MAX_PAUSE_SECONDS)

    def _delete(self, lease: Lease, *prefixes: str) -> None:
        """Delete objects of the job. If the store fails, retention deletes them with the job."""
        job = lease.job
        for prefix in prefixes:
            try:
                self._store.delete(job.tenant_id, job.id, prefix)
            except FilmgateError as exc:
                log = Log("worker", job_id=job.id, trace_id=job.trace_id)
                log.warning("could not delete intermediate objects", code=exc.code)


def _name(lease: Lease, part: str) -> ObjectName:
    return ObjectName(lease.job.tenant_id, lease.job.id, part)


def _parts_of(fence: int) -> list[str]:
    """The clip and the stills of one attempt."""
    return [clip_part(fence), *(picture_part(kind, fence) for kind in StillKind)]
