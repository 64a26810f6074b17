"""Group commit for SQLite: concurrent requests share one transaction and one flush to disk.

SQLite has one writer, and every durable commit waits for the disk. The thread that has the turn runs the work
of all threads that wait for it; each of them returns after the commit that contains its own change.
"""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

import sqlalchemy as sa

from filmgate.database import Database
from filmgate.errors import FilmgateError

T = TypeVar("T")


class _Entry(Generic[T]):
    """One caller's work and its result."""

    def __init__(self, work: Callable[[sa.Connection], T]) -> None:
        self._work = work
        self._value: T | None = None
        self._error: Exception | None = None
        self.is_done = False
        # Released when the work is done, or when this caller must run the next group.
        self.turn = threading.Lock()
        self.turn.acquire()

    def attempt(self, connection: sa.Connection) -> None:
        """Run the work. A FilmgateError concerns only this caller, whose changes are rolled back."""
        self._error = None
        try:
            with connection.begin_nested():
                self._value = self._work(connection)
        except FilmgateError as exc:
            self._error = exc

    def fail(self, error: Exception) -> None:
        self._error, self.is_done = error, True

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # set by attempt, or there is an error


class GroupCommit:
    """Runs many small transactions of concurrent threads as few."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: list[_Entry[object]] = []
        self._is_led = False
        self._guard = threading.Lock()

    def run(self, work: Callable[[sa.Connection], T]) -> T:
        """Run the work in a durable transaction, on SQLite possibly with the work of other threads.

        A FilmgateError of the work rolls back its own changes. Any other error rolls the group back, and
        every caller gets its own transaction.
        """
        if not self._database.is_sqlite:
            with self._database.write() as connection:
                return work(connection)
        entry: _Entry[T] = _Entry(work)
        with self._guard:
            self._waiting.append(entry)  # type: ignore[arg-type]  # a list of entries of any result
            is_leader, self._is_led = not self._is_led, True
        if not is_leader:
            entry.turn.acquire()
        if not entry.is_done:
            self._lead()
        return entry.result()

    def _lead(self) -> None:
        """Run everything that waits, this caller's work included, then pass the turn on."""
        with self._guard:
            group, self._waiting = self._waiting, []
        self._commit(group)
        with self._guard:
            successor = self._waiting[0] if self._waiting else None
            self._is_led = successor is not None
        # Start the next group before waking this one's callers: the disk stays busy.
        if successor is not None:
            successor.turn.release()
        for entry in group:
            entry.turn.release()

    def _commit(self, group: list[_Entry[object]]) -> None:
        try:
            with self._database.write() as connection:
                for entry in group:
                    entry.attempt(connection)
        except Exception as exc:  # noqa: BLE001 - every caller must return; each raises its own error
            if len(group) == 1 or isinstance(exc, FilmgateError):
                for entry in group:
                    entry.fail(exc)
                return
            for entry in group:
                self._commit([entry])
        for entry in group:
            entry.is_done = True
