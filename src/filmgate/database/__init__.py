"""The database of jobs and tenants. Opening it upgrades its schema."""

from pathlib import Path

import sqlalchemy as sa

from filmgate.database.engine import Database, file_url
from filmgate.database.schema import REVISION
from filmgate.settings import QueueSettings

__all__ = ["Database", "open_database"]

DEFAULT_FILE = "filmgate.db"


def open_database(settings: QueueSettings, data: Path) -> Database:
    """Open the database of these settings and migrate it. Raises QueueUnavailable if it cannot be reached."""
    url = settings.url or file_url(data / DEFAULT_FILE)
    database = Database(url, timeout_seconds=settings.timeout_seconds)
    try:
        if not _is_current(database):
            from filmgate.database.migration import migrate

            migrate(database)
    except BaseException:
        database.close()
        raise
    return database


def _is_current(database: Database) -> bool:
    """Checked without alembic, which takes long to import."""
    with database.read() as connection:
        if not sa.inspect(connection).has_table("alembic_version"):
            return False
        found = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar_one_or_none()
    return found == REVISION
