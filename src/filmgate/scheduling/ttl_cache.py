"""A value that is read again at most every few seconds."""

import threading
import time
from collections.abc import Callable
from math import inf
from typing import Generic, TypeVar

from filmgate.errors import FilmgateError

Value = TypeVar("Value")

# If reading takes long, at most this share of the time goes into it.
_MAX_DUTY = 0.1
# How long a failure is remembered: requests that waited for the read fail with it, not one after another.
_FAILURE_SECONDS = 1.0


class TtlCache(Generic[Value]):
    """Caches the result of `read` for `seconds`: a burst of requests reads it once."""

    def __init__(
        self, read: Callable[[], Value], seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._read = read
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._expires_at = -inf
        self._value: Value | None = None
        self._error: FilmgateError | None = None

    def get(self) -> Value:
        """The value. Raises what `read` raises, for a second also without calling it."""
        with self._lock:
            if self._clock() >= self._expires_at:
                self._refresh()
            if self._error is not None:
                raise self._error
            return self._value  # type: ignore[return-value]  # set by a read that did not fail

    def expire(self) -> None:
        """Read again on the next call."""
        with self._lock:
            self._expires_at = -inf

    def _refresh(self) -> None:
        began = self._clock()
        try:
            self._value, self._error = self._read(), None
        except FilmgateError as exc:
            self._error = exc
            self._expires_at = self._clock() + _FAILURE_SECONDS
        else:
            self._expires_at = began + max(self._seconds, (self._clock() - began) / _MAX_DUTY)
