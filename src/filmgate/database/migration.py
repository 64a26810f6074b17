"""Brings a database to the newest schema, once, however many processes start together."""

from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from filmgate.database.engine import Database
from filmgate.errors import QueueUnavailable

_SCRIPTS = Path(__file__).parent / "migrations"
_LOCK_NUMBER = 0x66696C6D  # "film": the PostgreSQL advisory lock that one migrating process holds


def migrate(database: Database, target: str = "head") -> None:
    """Upgrade to `target`; a database that is newer than this program is refused, not touched."""
    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS))
    config.set_main_option("path_separator", "os")
    scripts = ScriptDirectory.from_config(config)
    with database.write() as connection:
        if not database.is_sqlite:
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK_NUMBER)))
        current = _revision(connection)
        if current is not None and current not in {script.revision for script in scripts.walk_revisions()}:
            raise QueueUnavailable(f"the database has schema {current}, newer than this version of filmgate")
        config.attributes["connection"] = connection
        command.upgrade(config, target)


def _revision(connection: sa.Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()
