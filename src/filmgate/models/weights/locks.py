"""Locks between the processes of one node: exclusive to fill or delete, shared to use.

flock belongs to the open file, so the kernel releases the locks of a process that dies.
"""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Self

from filmgate.errors import StoreUnavailable


class NodeLock:
    """A held lock; closing it releases the lock."""

    def __init__(self, file: int) -> None:
        self._file: int | None = file

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def acquire_lock(
    path: Path, *, is_shared: bool = False, on_wait: Callable[[], None] | None = None
) -> NodeLock:
    """Waits for the lock. Calls `on_wait` first if another process holds it."""
    if (lock := try_lock(path, is_shared=is_shared)) is not None:
        return lock
    if on_wait is not None:
        on_wait()
    file = _open(path)
    fcntl.flock(file, fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX)
    return NodeLock(file)


def try_lock(path: Path, *, is_shared: bool = False) -> NodeLock | None:
    """The lock, or None if it is held elsewhere."""
    file = _open(path)
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    return NodeLock(file)


def _open(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as exc:
        raise StoreUnavailable(
            f"{path.parent}: {exc.strerror}; set models.cache to a folder that this process can write"
        ) from exc
