"""What an error means for the job it happened to."""

from filmgate.errors import Cancelled, FilmgateError, ObjectCorrupt
from filmgate.jobs import Failure, Reason
from filmgate.scheduling.base import Setback

DRAINED = Setback(Failure(Reason.WORKER_LOST, "the worker was shut down"), counts=False)


class Drained(Exception):  # noqa: N818 - nothing went wrong
    """The drain ran out of time before the job did."""


def judge(error: Exception) -> Setback:
    """How the attempt ends: handed back, tried again or failed."""
    match error:
        case Drained():
            return DRAINED
        case Cancelled():
            return Setback(Failure(Reason.CANCELLED, str(error)), is_retryable=False)
        case ObjectCorrupt():
            return Setback(Failure(Reason.of(error), str(error)))
        case FilmgateError():
            return Setback(Failure(Reason.of(error), str(error)), is_retryable=error.retryable)
        case _:
            # Its message may quote the request; its type cannot.
            return Setback(Failure(Reason.INTERNAL, f"internal error ({type(error).__name__})"))
