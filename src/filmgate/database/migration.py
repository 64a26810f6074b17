"""Creates and upgrades the schema, once, however many processes start together."""

from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from filmgate.database.engine import Database
from filmgate.errors import QueueUnavailable

_SCRIPTS = Path(__file__).parent / "migrations"
_LOCK_NUMBER = 0x66696C6D  # the PostgreSQL advisory lock held by the migrating process ("film")
# Before the first release the schema was numbered 0001 to 0005 and had a table of this name.
_OLD_TABLE = "loads"


def migrate(database: Database, target: str = "head") -> None:
    """Upgrade to `target`. Raises QueueUnavailable, without changes, for a schema of another version."""
    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS))
    config.set_main_option("path_separator", "os")
    scripts = ScriptDirectory.from_config(config)
    with database.write() as connection:
        if not database.is_sqlite:
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK_NUMBER)))
        _check(connection, {script.revision for script in scripts.walk_revisions()})
        config.attributes["connection"] = connection
        command.upgrade(config, target)


def _check(connection: sa.Connection, known: set[str]) -> None:
    current = MigrationContext.configure(connection).get_current_revision()
    if sa.inspect(connection).has_table(_OLD_TABLE):
        raise QueueUnavailable(
            "the database was created by a pre-release of filmgate and cannot be upgraded; "
            "use a new data folder or an empty database"
        )
    if current is not None and current not in known:
        raise QueueUnavailable(
            f"the database has schema {current}, which is newer than this version of filmgate; "
            "upgrade filmgate"
        )
