"""What an error means for the job that raised it."""

from filmgate.errors import (
    Cancelled,
    DeviceBroken,
    DeviceDrifted,
    FilmgateError,
    KeyRefused,
    KeyringUnavailable,
    ObjectCorrupt,
)
from filmgate.jobs import Failure, Job, Reason
from filmgate.scheduling.base import AttemptFailure

DRAINED = AttemptFailure(Failure(Reason.WORKER_LOST, "the worker was shut down"), uses_attempt=False)

_BROKEN = "the GPU failed; another one renders the video"

# A job whose tenant key fails after rendering waits longer each time, because it must be rendered again.
_FIRST_KEY_SECONDS = 10.0
_MAX_KEY_SECONDS = 3600.0


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
        case KeyringUnavailable() | KeyRefused():
            # Not the job's fault. The next lease decides: it proves that the key can be used.
            message, handed_back = "the tenant's encryption key cannot be used", job.fence - job.attempt
            pause = min(_FIRST_KEY_SECONDS * 2.0**handed_back, _MAX_KEY_SECONDS)
            failure = Failure(Reason.KEY_REFUSED, message)
            return AttemptFailure(failure, uses_attempt=False, retry_seconds=pause)
        case FilmgateError():
            is_retryable = error.retryable or isinstance(error, ObjectCorrupt)
            return AttemptFailure(Failure(Reason.of(error), str(error)), is_retryable=is_retryable)
        case _:
            # The type only: the message may quote the request.
            return AttemptFailure(Failure(Reason.INTERNAL, f"internal error ({type(error).__name__})"))
