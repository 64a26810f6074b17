"""Creates and upgrades the schema, once, however many processes start together."""

from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from filmgate.database.engine import Database
from filmgate.database.schema import REVISION
from filmgate.errors import QueueUnavailable

_SCRIPTS = Path(__file__).parent / "migrations"
_LOCK_NUMBER = 0x66696C6D  # the PostgreSQL advisory lock held by the migrating process ("film")


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
    if current is None or current in known:
        return
    if _number(current) > _number(REVISION):
        raise QueueUnavailable(
            f"the database has schema {current}, which is newer than this version of filmgate; "
            "upgrade filmgate"
        )
    raise QueueUnavailable(
        f"the database has schema {current} of a pre-release of filmgate, which cannot be upgraded; "
        "use a new data folder or an empty database"
    )


def _number(revision: str) -> str:
    return revision.partition("_")[0]
