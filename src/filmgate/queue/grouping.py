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

    def attempt(self, connection: sa.Connection) -> None:
        """A refusal is this caller's own; it is raised before anything is written for it."""
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
        self._turn = threading.Lock()
        self._waiting: list[_Entry[object]] = []
        self._guard = threading.Lock()

    def run(self, work: Callable[[sa.Connection], T]) -> T:
        """Do the work in a durable transaction, perhaps together with others' work.

        The work raises its refusals (FilmgateError) before it writes. Any other error undoes the whole group,
        and every caller gets a transaction of its own.
        """
        entry: _Entry[T] = _Entry(work)
        with self._guard:
            self._waiting.append(entry)  # type: ignore[arg-type]  # a list of entries of any result
        with self._turn:
            if not entry.is_over:
                self._serve(self._take())
        return entry.result()

    def _take(self) -> list[_Entry[object]]:
        with self._guard:
            group, self._waiting = self._waiting, []
        return group

    def _serve(self, group: list[_Entry[object]]) -> None:
        try:
            self._commit(group)
        except FilmgateError as exc:
            for entry in group:
                entry.fail(exc)
        except sa.exc.SQLAlchemyError as exc:
            if len(group) == 1:
                group[0].fail(exc)
                return
            for entry in group:
                self._serve([entry])

    def _commit(self, group: list[_Entry[object]]) -> None:
        with self._database.write() as connection:
            for entry in group:
                entry.attempt(connection)
        for entry in group:
            entry.is_over = True
