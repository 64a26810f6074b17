"""What an error means for the job that raised it."""

from filmgate.errors import (
    Cancelled,
    DeviceBroken,
    DeviceDrifted,
    FilmgateError,
    KeyRefused,
    KeyringUnavailable,
    ModelUnavailable,
    ObjectCorrupt,
    StoreUnavailable,
)
from filmgate.jobs import Failure, Job, Reason
from filmgate.scheduling.base import AttemptFailure

DRAINED = AttemptFailure(Failure(Reason.WORKER_LOST, "the worker was shut down"), uses_attempt=False)

_BROKEN = "the GPU failed; another one renders the video"
_KEY_FAILED = "the tenant's encryption key cannot be used"

# A job that fails because of the store, the keyring or the model hub waits longer each time: it may be
# rendered again.
_FIRST_PAUSE_SECONDS = 10.0
_MAX_PAUSE_SECONDS = 600.0
# A job older than this uses attempts, so that it ends although the store or the hub does not recover.
_MAX_OUTAGE_SECONDS = 86400.0


class Drained(Exception):  # noqa: N818 - not an error
    """The drain ended before the job did."""


def to_failure(error: Exception, job: Job) -> AttemptFailure:
    """How the attempt at this job ends: handed back, retried or failed."""
    match error:
        case Drained():
            return DRAINED
        case DeviceBroken() | DeviceDrifted():
            # Not the job's fault: another GPU renders it.
            return AttemptFailure(Failure(Reason.DEVICE_UNUSABLE, _BROKEN), uses_attempt=False)
        case Cancelled():
            return AttemptFailure(Failure(Reason.CANCELLED, str(error)), is_retryable=False)
        case KeyringUnavailable() | KeyRefused() | StoreUnavailable() | ModelUnavailable():
            return _wait(error, job)
        case FilmgateError():
            is_retryable = error.retryable or isinstance(error, ObjectCorrupt)
            return AttemptFailure(Failure(Reason.of(error), str(error)), is_retryable=is_retryable)
        case _:
            # The type only: the message may quote the request.
            return AttemptFailure(Failure(Reason.INTERNAL, f"internal error ({type(error).__name__})"))


def _wait(
    error: KeyringUnavailable | KeyRefused | StoreUnavailable | ModelUnavailable, job: Job
) -> AttemptFailure:
    """Not the job's fault: an outage must not use up the attempts of an entire backlog."""
    handed_back = min(job.fence - job.attempt, 10)
    pause = min(_FIRST_PAUSE_SECONDS * 2.0**handed_back, _MAX_PAUSE_SECONDS)
    if isinstance(error, KeyringUnavailable | KeyRefused):
        # It waits without a limit here, because the next lease checks the key.
        return AttemptFailure(
            Failure(Reason.KEY_REFUSED, _KEY_FAILED), uses_attempt=False, retry_seconds=pause
        )
    is_old = (job.started_at or job.created_at) - job.created_at > _MAX_OUTAGE_SECONDS
    failure = Failure(Reason.of(error), str(error))
    return AttemptFailure(failure, uses_attempt=is_old, retry_seconds=pause)
