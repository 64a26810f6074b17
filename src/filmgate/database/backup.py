"""Copies of the SQLite database, taken while it is in use, and the first steps of a restored one."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import sqlalchemy as sa

from filmgate.database.engine import Database
from filmgate.database.schema import breakers, jobs, workers
from filmgate.errors import QueueUnavailable, UsageError


def copy_database(database: Database, target: Path) -> None:
    """Write a consistent copy with mode 0600. Writers are not blocked. Raises UsageError for PostgreSQL."""
    if not database.is_sqlite:
        raise UsageError("back up PostgreSQL with pg_dump; see docs/operations.md", option="queue.url")
    os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    try:
        with (
            closing(sqlite3.connect(f"file:{database.url.database}?mode=ro", uri=True)) as source,
            closing(sqlite3.connect(target)) as copy,
        ):
            source.backup(copy)
            check_copy(copy)
            copy.execute("PRAGMA journal_mode = DELETE")  # one file, without a journal beside it
    except sqlite3.Error as exc:
        raise QueueUnavailable(f"the database could not be copied: {type(exc).__name__}") from exc


def check_copy(copy: sqlite3.Connection) -> None:
    """Raises QueueUnavailable if the copy is damaged."""
    if copy.execute("PRAGMA quick_check").fetchone() != ("ok",):
        raise QueueUnavailable("the copy of the database is damaged; take another one")


def place_database(copy: Path, target: Path) -> None:
    """Copy a backup to its place, whole or not at all. Raises UsageError if a database is there."""
    if target.exists():
        raise UsageError(f"{target} exists; restore into a new data folder", option="data")
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.restored")
    draft.unlink(missing_ok=True)
    os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    try:
        with closing(sqlite3.connect(f"file:{copy}?mode=ro", uri=True)) as source:
            check_copy(source)
            with closing(sqlite3.connect(draft)) as restored:
                source.backup(restored)
        draft.rename(target)
    except sqlite3.Error as exc:
        raise QueueUnavailable(f"{copy} is not a database: {type(exc).__name__}") from exc
    finally:
        draft.unlink(missing_ok=True)


def end_leases(database: Database) -> int:
    """Make all leases due at once and forget live workers. Returns how many jobs were leased or waiting.

    The steady clock of leases starts with the host, so the times of another host mean nothing here.
    """
    with database.write() as connection:
        held = sa.update(jobs).where(jobs.c.wake_at.is_not(None)).values(wake_at=0.0, wake_set_at=0.0)
        ended = connection.execute(held).rowcount
        connection.execute(sa.delete(workers))
        connection.execute(sa.delete(breakers))
    return ended
