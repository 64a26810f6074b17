"""A value that is read again at most every few seconds."""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class TtlCache(Generic[Value]):
    """Caches the result of `read` for `seconds`: a burst of requests reads it once."""

    def __init__(self, read: Callable[[], Value], seconds: float) -> None:
        self._read = read
        self._seconds = seconds
        self._lock = threading.Lock()
        self._cached: tuple[float, Value] | None = None

    def get(self) -> Value:
        with self._lock:
            now = time.monotonic()
            if self._cached is None or now - self._cached[0] > self._seconds:
                self._cached = (now, self._read())
            return self._cached[1]
