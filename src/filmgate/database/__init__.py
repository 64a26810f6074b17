"""Beside the path: the database that holds jobs and tenants. Opening it brings its schema up to date."""

from pathlib import Path

from filmgate.database.engine import Database
from filmgate.settings import QueueSettings

__all__ = ["Database", "open_database"]

DEFAULT_FILE = "filmgate.db"


def open_database(settings: QueueSettings, data: Path) -> Database:
    """The database of these settings, migrated. Raises QueueUnavailable when it cannot be reached."""
    from filmgate.database.migration import migrate

    url = settings.url or f"sqlite:///{data / DEFAULT_FILE}"
    database = Database(url, timeout_seconds=settings.timeout_seconds)
    migrate(database)
    return database
