"""Waits until another process has committed to the database."""

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from filmgate.database.engine import Database
from filmgate.telemetry.logs import Log

log = Log("database")

# How often a waiting thread looks: microseconds of work on SQLite, and a check of `is_stopping` elsewhere.
_LOOK_SECONDS = 0.04
_STOP_CHECK_SECONDS = 0.2


class CommitSignal:
    """Waits for the next commit, or for a time limit.

    SQLite sends no notifications. `PRAGMA data_version` changes with every commit of another connection, in
    any process, and reads only a counter in shared memory. PostgreSQL has no such counter: every wait takes
    its full time. Used by one thread at a time.
    """

    def __init__(self, database: Database) -> None:
        self._path = Path(database.url.database or "").resolve() if database.is_sqlite else None
        self._connection: sqlite3.Connection | None = None
        self._version: int | None = None

    def wait(self, seconds: float, is_stopping: Callable[[], bool] = lambda: False) -> bool:
        """Return when there was a commit since the last call returned, after `seconds`, or when stopping.

        Returns whether there was a commit. The first call returns immediately, because earlier commits are
        not known.
        """
        ends_at = time.monotonic() + seconds
        can_look = self._path is not None
        while not is_stopping():
            try:
                if can_look and self._has_changed():
                    return True
            except sqlite3.Error as exc:
                self.close()
                can_look = False
                log.warning("cannot detect commits by other processes; falling back to polling", error=exc)
            if (left := ends_at - time.monotonic()) <= 0:
                break
            time.sleep(min(left, _LOOK_SECONDS if can_look else _STOP_CHECK_SECONDS))
        return False

    def _has_changed(self) -> bool:
        seen, self._version = self._version, self._read_version()
        return self._version != seen

    def _read_version(self) -> int:
        """Uses a separate connection: a connection does not see its own commits here, and an open
        transaction would hide the commits of others.
        """
        if self._connection is None:
            assert self._path is not None
            uri = f"{self._path.as_uri()}?mode=rw"
            self._connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
        version: int = self._connection.execute("PRAGMA data_version").fetchone()[0]
        return version

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
