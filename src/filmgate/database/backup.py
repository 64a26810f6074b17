"""Copies of the SQLite database, taken while it is in use, and the first steps of a restored one."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import sqlalchemy as sa

from filmgate.database.engine import Database
from filmgate.database.schema import breakers, jobs, workers
from filmgate.errors import QueueUnavailable, UsageError

# What SQLite writes next to a database; it remains after a crash.
_JOURNALS = ("-wal", "-shm", "-journal")


def copy_database(database: Database, target: Path) -> None:
    """Write a consistent copy with mode 0600. Writers are not blocked. Raises UsageError for PostgreSQL."""
    if not database.is_sqlite:
        raise UsageError("back up PostgreSQL with pg_dump; see docs/operate/backup.md", option="queue.url")
    os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    try:
        with (
            closing(_open_to_read(Path(database.url.database or ""))) as source,
            closing(sqlite3.connect(target)) as copy,
        ):
            source.backup(copy)
            check_copy(copy)
            copy.execute("PRAGMA journal_mode = DELETE")  # a single file, without a journal
    except sqlite3.Error as exc:
        raise QueueUnavailable(f"the database could not be copied to {target}: {exc}") from exc


def check_copy(copy: sqlite3.Connection) -> None:
    """Raises QueueUnavailable if the copy is damaged."""
    if copy.execute("PRAGMA quick_check").fetchone() != ("ok",):
        raise QueueUnavailable("the copy of the database is damaged; take another one")


def place_database(copy: Path, target: Path) -> None:
    """Copy a backup to its place, whole or not at all. Raises UsageError if a database is there.

    Also if only a journal is left of it: SQLite would add what the journal contains to the restored database.
    """
    for path in (target, *(target.with_name(target.name + ending) for ending in _JOURNALS)):
        if path.exists():
            raise UsageError(f"{path} exists; restore into a new data folder", option="--data")
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.restored")
    draft.unlink(missing_ok=True)
    os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    try:
        with closing(_open_to_read(copy)) as source:
            check_copy(source)
            with closing(sqlite3.connect(draft)) as restored:
                source.backup(restored)
        draft.rename(target)
    except sqlite3.Error as exc:
        raise QueueUnavailable(f"{copy} could not be copied to {target}: {exc}") from exc
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def reading_copy(path: Path) -> Iterator[sa.Connection]:
    """A connection that only reads: `Database` would give the copy a journal, which needs write access."""
    engine = sa.create_engine("sqlite://", creator=lambda: _open_to_read(path), poolclass=sa.NullPool)
    with engine.connect() as connection:
        yield connection


def _open_to_read(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)


def end_leases(database: Database) -> int:
    """End all leases and delete live workers. Returns how many jobs were leased or in a backoff.

    The steady clock of leases starts with the host, so the times of another host mean nothing here.
    """
    with database.write() as connection:
        held = sa.update(jobs).where(jobs.c.wake_at.is_not(None)).values(wake_at=0.0, wake_set_at=0.0)
        ended = connection.execute(held).rowcount
        connection.execute(sa.delete(workers))
        connection.execute(sa.delete(breakers))
    return ended
