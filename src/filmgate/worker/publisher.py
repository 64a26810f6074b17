"""The end of an attempt: complete or fail the job, and delete intermediate objects."""

import time
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from filmgate.errors import FilmgateError, LeaseLost, QueueUnavailable
from filmgate.jobs import Job, JobState, Lease, StillKind
from filmgate.scheduling.base import AttemptFailure, AttemptResult, JobQueue
from filmgate.store.base import (
    CHECKPOINT_PART,
    LIVE_PREFIX,
    ObjectStore,
    clip_part,
    live_prefix,
    picture_part,
)
from filmgate.telemetry.logs import Log
from filmgate.worker.failures import Drained, to_failure

_T = TypeVar("_T")
_MAX_PAUSE_SECONDS = 15.0
# Viewers are one or two polls behind the decoder and still need the last fragments.
_FRAGMENT_GRACE_SECONDS = 3.0


class Publisher:
    """Ends attempts in the queue. A job is completed only after its clip is durable in the store."""

    def __init__(self, queue: JobQueue, store: ObjectStore) -> None:
        self._queue = queue
        self._store = store
        self._old_fragments: deque[tuple[float, Lease]] = deque()

    def complete(self, lease: Lease, result: AttemptResult, log: Log, *, has_viewers: bool = False) -> Job:
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

    def end_with_error(self, lease: Lease, error: Exception, log: Log) -> AttemptFailure | None:
        """End an attempt that raised this error. Returns None if another worker has the job."""
        try:
            if isinstance(error, LeaseLost):
                raise error
            failed = to_failure(error, lease.job)
            job = self.fail_attempt(lease, failed)
        except LeaseLost:
            log.warning("another worker has the job; discarding this attempt")
            self.discard(lease)
            return None
        if isinstance(error, Drained):
            log.info("job handed back", state=job.state)
        else:
            log.error("attempt failed", error=error, reason=failed.failure.reason, state=job.state)
        return failed

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


def _parts_of(fence: int) -> list[str]:
    """The clip and the stills of one attempt."""
    return [clip_part(fence), *(picture_part(kind, fence) for kind in StillKind)]
