"""Group commit for SQLite: requests that arrive together share one transaction and one flush to disk.

SQLite has one writer and every durable commit waits for the disk. Whoever gets the turn does the work of all
who wait for it; each of them returns only after the commit that holds its own change.
"""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

import sqlalchemy as sa

from filmgate.database import Database
from filmgate.errors import FilmgateError

T = TypeVar("T")


class _Entry(Generic[T]):
    """One caller's work and how it ended."""

    def __init__(self, work: Callable[[sa.Connection], T]) -> None:
        self._work = work
        self._value: T | None = None
        self._error: Exception | None = None
        self.is_over = False
        # Held until somebody has done the work, or until it is this caller's turn to do everyone's.
        self.call = threading.Lock()
        self.call.acquire()

    def attempt(self, connection: sa.Connection) -> None:
        """A refusal is this caller's own; it is raised before anything is written for it."""
        self._error = None
        try:
            self._value = self._work(connection)
        except FilmgateError as exc:
            self._error = exc

    def fail(self, error: Exception) -> None:
        self._error, self.is_over = error, True

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # set by attempt, or there is an error


class GroupCommit:
    """Runs small transactions of many threads as few."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: list[_Entry[object]] = []
        self._is_led = False
        self._guard = threading.Lock()

    def run(self, work: Callable[[sa.Connection], T]) -> T:
        """Do the work in a durable transaction, perhaps together with others' work.

        The work raises its refusals (FilmgateError) before it writes. Any other error undoes the whole group,
        and every caller gets a transaction of its own.
        """
        entry: _Entry[T] = _Entry(work)
        with self._guard:
            self._waiting.append(entry)  # type: ignore[arg-type]  # a list of entries of any result
            is_leader, self._is_led = not self._is_led, True
        if not is_leader:
            entry.call.acquire()
        if not entry.is_over:
            self._lead()
        return entry.result()

    def _lead(self) -> None:
        """Serve everyone who waits, this caller among them, then pass the lead on."""
        with self._guard:
            group, self._waiting = self._waiting, []
        self._serve(group)
        with self._guard:
            successor = self._waiting[0] if self._waiting else None
            self._is_led = successor is not None
        # The next group starts before this one's callers are woken: the disk does not wait for them.
        if successor is not None:
            successor.call.release()
        for entry in group:
            entry.call.release()

    def _serve(self, group: list[_Entry[object]]) -> None:
        try:
            with self._database.write() as connection:
                for entry in group:
                    entry.attempt(connection)
        except Exception as exc:  # noqa: BLE001 - nobody may be left waiting; each caller raises its own
            if len(group) == 1 or isinstance(exc, FilmgateError):
                for entry in group:
                    entry.fail(exc)
                return
            for entry in group:
                self._serve([entry])
        for entry in group:
            entry.is_over = True
