"""Retries of what an outage must not lose: a finished clip, and the end of a job in the database."""

import time
from collections.abc import Callable
from typing import TypeVar

from filmgate.errors import FilmgateError
from filmgate.telemetry.logs import Log

_T = TypeVar("_T")
_PAUSE_SECONDS = (0.2, 5.0)

Errors = tuple[type[FilmgateError], ...]


def retry(
    action: Callable[[], _T],
    errors: Errors,
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
