"""What an error means for the job it happened to."""

from filmgate.errors import Cancelled, FilmgateError, ObjectCorrupt
from filmgate.jobs import Failure, Reason
from filmgate.scheduling.base import AttemptFailure

DRAINED = AttemptFailure(Failure(Reason.WORKER_LOST, "the worker was shut down"), uses_attempt=False)


class Drained(Exception):  # noqa: N818 - not an error
    """The drain ended before the job did."""


def to_failure(error: Exception) -> AttemptFailure:
    """How the attempt ends: handed back, retried or failed."""
    match error:
        case Drained():
            return DRAINED
        case Cancelled():
            return AttemptFailure(Failure(Reason.CANCELLED, str(error)), is_retryable=False)
        case ObjectCorrupt():
            return AttemptFailure(Failure(Reason.of(error), str(error)))
        case FilmgateError():
            return AttemptFailure(Failure(Reason.of(error), str(error)), is_retryable=error.retryable)
        case _:
            # The type only: the message may quote the request.
            return AttemptFailure(Failure(Reason.INTERNAL, f"internal error ({type(error).__name__})"))
