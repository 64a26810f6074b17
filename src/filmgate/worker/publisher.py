"""The end of an attempt: complete or fail the job, and delete intermediate objects.

An outage must lose neither a finished clip nor the end of a job: `retry` repeats both.
"""

import math
import time
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from filmgate.errors import (
    Cancelled,
    FilmgateError,
    KeyringUnavailable,
    LeaseLost,
    QueueUnavailable,
    StoreUnavailable,
)
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

# A store that is full or away for a while must not lose a clip.
STORE_OUTAGES = (StoreUnavailable, KeyringUnavailable)
_PAUSE_SECONDS = (0.2, 5.0)
# Viewers are one or two polls behind the decoder and still need the last fragments.
_FRAGMENT_GRACE_SECONDS = 3.0
# How long a job may take to be handed back.
_HAND_BACK_SECONDS = 10.0
_GIVEN_UP = "the database does not answer and the drain has ended; the lease of the job expires"


class Publisher:
    """Ends attempts in the queue. A job is completed only after its clip is durable in the store.

    While the database is down, it retries until `ends_at`. After that, the leases of the jobs expire.
    """

    def __init__(self, queue: JobQueue, store: ObjectStore) -> None:
        self._queue = queue
        self._store = store
        self.ends_at = math.inf
        self._old_fragments: deque[tuple[float, Lease]] = deque()

    def drain(self, ends_at: float) -> None:
        """Retry until shortly after this time, at which jobs are handed back. Safe in a signal handler."""
        self.ends_at = ends_at + _HAND_BACK_SECONDS

    def complete(
        self, lease: Lease, result: AttemptResult, log: Log, *, has_viewers: bool = False
    ) -> Job | None:
        """Complete the job with a stored clip and delete its intermediate objects. Raises LeaseLost.

        If there may be viewers, `delete_old_fragments` deletes the live fragments a few seconds later.
        Returns None if the database does not answer. The job may be complete, so its clip is kept.
        """
        try:
            job = self._retry(lease, lambda: self._queue.complete(lease, result))
        except QueueUnavailable as exc:
            log.warning(_GIVEN_UP, code=exc.code)
            return None
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
        """End an attempt that raised this error.

        Returns None if the lease has ended, or if the database does not answer.
        """
        try:
            if isinstance(error, LeaseLost):
                raise error
            failed = to_failure(error, lease.job)
            job = self.fail_attempt(lease, failed)
        except LeaseLost:
            log.warning("the lease of the job has ended; discarding this attempt")
            self.discard(lease)
            return None
        except QueueUnavailable as exc:
            log.warning(_GIVEN_UP, code=exc.code)
            return None
        match error:
            case Drained():
                log.info("job handed back", state=job.state)
            case Cancelled():
                log.info("job cancelled", state=job.state)
            case _:
                log.error("attempt failed", error=error, reason=failed.failure.reason, state=job.state)
        return failed

    def fail_attempt(self, lease: Lease, failed: AttemptFailure) -> Job:
        """End a failed attempt in the queue and delete its objects. Raises LeaseLost and QueueUnavailable."""
        job = self._retry(lease, lambda: self._queue.fail_attempt(lease, failed))
        self.discard(lease, is_final=job.state.is_final)
        return job

    def discard(self, lease: Lease, *, is_final: bool = False) -> None:
        """Delete the objects of this attempt. The checkpoint stays for the next one, unless `is_final`."""
        checkpoint = [CHECKPOINT_PART] if is_final else []
        self._delete(lease, live_prefix(lease.fence), *_parts_of(lease.fence), *checkpoint)

    def delete_checkpoint(self, lease: Lease) -> None:
        """Delete the latents checkpoint, so that the next attempt denoises again."""
        self._delete(lease, CHECKPOINT_PART)

    def _retry(self, lease: Lease, action: Callable[[], Job]) -> Job:
        """Retry until the database answers, because only the database has the state of the job."""
        return retry(action, (QueueUnavailable,), _log_of(lease), ends_at=lambda: self.ends_at)

    def _delete(self, lease: Lease, *prefixes: str) -> None:
        """Delete objects of the job. If the store fails, retention deletes them with the job."""
        job = lease.job
        for prefix in prefixes:
            try:
                self._store.delete(job.tenant_id, job.id, prefix)
            except Exception as exc:  # noqa: BLE001 - it must not fail a completed job: that deletes the clip
                _log_of(lease).warning("could not delete intermediate objects", error=exc)


def retry(
    action: Callable[[], _T],
    errors: tuple[type[FilmgateError], ...],
    log: Log,
    *,
    ends_at: Callable[[], float],
    check: Callable[[], None] = lambda: None,
) -> _T:
    """Repeat the action while it raises one of these errors. `check` raises to stop.

    The error is raised at `ends_at` on the monotonic clock, which is read again before each pause.
    """
    pause, longest = _PAUSE_SECONDS
    while True:
        check()
        try:
            return action()
        except errors as exc:
            if time.monotonic() + pause > ends_at():
                raise
            log.warning("a write failed; retrying", error=exc, seconds=pause)
        time.sleep(pause)
        pause = min(pause * 2, longest)


def _log_of(lease: Lease) -> Log:
    return Log("worker", job_id=lease.job.id, trace_id=lease.job.trace_id)


def _parts_of(fence: int) -> list[str]:
    """The clip and the stills of one attempt."""
    return [clip_part(fence), *(picture_part(kind, fence) for kind in StillKind)]
