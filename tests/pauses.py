"""Pausing a process that shares a SQLite database with others."""

import sqlite3
from contextlib import closing
from pathlib import Path

import psutil

from tests.waiting import wait_until


def pause(pid, database):
    """Pause a process, but not while it writes to the database file: nobody else could write then."""
    process = psutil.Process(pid)

    def is_paused_between_writes():
        process.suspend()
        wait_until(lambda: _has_stopped(pid), interval=0.001)
        if _can_write(database):
            return True
        process.resume()
        return False

    wait_until(is_paused_between_writes)


def _has_stopped(pid):
    """True when every thread has stopped: one that waits for the disk stops after that."""
    try:
        threads = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:  # a thread has just ended
        return False
    return {thread.rpartition(")")[2].split()[0] for thread in threads} == {"T"}


def _can_write(database):
    with closing(sqlite3.connect(database, timeout=0, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        return True
