"""Databases of other versions are upgraded or rejected; the migrations lead to the schema of the code."""

import hashlib
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from filmgate.database import open_database
from filmgate.database.engine import Database
from filmgate.database.migration import migrate
from filmgate.database.schema import REVISION, metadata
from filmgate.errors import QueueUnavailable, SettingsError
from filmgate.settings import QueueSettings


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_database(request, tmp_path):
    if request.param == "sqlite":
        database = Database(f"sqlite:///{tmp_path / 'old.db'}")
        yield database
    else:
        database = Database(request.getfixturevalue("postgres_url"))
        with database.write() as connection:
            connection.exec_driver_sql("DROP SCHEMA public CASCADE")
            connection.exec_driver_sql("CREATE SCHEMA public")
        yield database
        with database.write() as connection:
            connection.exec_driver_sql("DROP SCHEMA public CASCADE")
            connection.exec_driver_sql("CREATE SCHEMA public")
        migrate(database)
    database.close()


# The revisions of pre-releases: the last of them were numbered as the first release is.
@pytest.mark.parametrize("revision", ["0005", "0100", "0100_0123abcd"])
def test_a_database_of_a_pre_release_is_rejected_untouched(empty_database, tmp_path, revision):
    """Pre-releases had fewer columns and tables, so their databases would fail later with an SQL error."""
    migrate(empty_database)
    with empty_database.write() as connection:
        connection.exec_driver_sql("DROP TABLE device_history")
        connection.exec_driver_sql("ALTER TABLE workers DROP COLUMN device_seconds")
        connection.exec_driver_sql(f"UPDATE alembic_version SET version_num = '{revision}'")
    tables = sa.inspect(empty_database.engine).get_table_names()
    url = empty_database.url.render_as_string(hide_password=False)
    with pytest.raises(
        QueueUnavailable, match=f"schema {revision} of a pre-release .* use a new data folder"
    ):
        open_database(QueueSettings(url=url), tmp_path)
    assert sa.inspect(empty_database.engine).get_table_names() == tables


def test_the_revision_contains_the_digest_of_the_schema():
    """A change of the schema needs a new revision: otherwise an older database would look current."""
    digest = hashlib.sha256("\n".join(describe(metadata)).encode()).hexdigest()[:8]
    assert REVISION.partition("_")[2] == digest, f"set the digest of the newest revision to {digest}"


def describe(metadata):
    """Every column and index, in words that do not depend on the version of SQLAlchemy."""
    for table in metadata.sorted_tables:
        for column in table.columns:
            default = column.server_default and str(column.server_default.arg)
            keys = sorted(key.target_fullname for key in column.foreign_keys)
            yield f"{column} {type(column.type).__name__} {default} {keys}" + "".join(
                f" {name}" for name in ("primary_key", "nullable", "unique") if getattr(column, name)
            )
        for index in sorted(table.indexes, key=lambda index: index.name):
            names = [column.name for column in index.columns]
            where = index.dialect_options["postgresql"]["where"]
            yield f"{index.name} {names} {where} {index.unique}"


def test_the_migrations_lead_to_exactly_the_schema_the_code_uses(empty_database):
    migrate(empty_database)
    with empty_database.read() as connection:
        context = MigrationContext.configure(connection)
        assert compare_metadata(context, metadata) == []
        assert context.get_current_revision() == REVISION


def test_processes_that_start_together_migrate_once(empty_database):
    with ThreadPoolExecutor(4) as pool:
        for start in [pool.submit(migrate, empty_database) for _ in range(4)]:
            start.result(60)
    assert "jobs" in sa.inspect(empty_database.engine).get_table_names()


def test_a_database_newer_than_the_program_is_refused_untouched(empty_database):
    migrate(empty_database)
    with empty_database.write() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(QueueUnavailable, match="newer than this version"):
        migrate(empty_database)
    with empty_database.write() as connection:
        connection.exec_driver_sql(f"UPDATE alembic_version SET version_num = '{REVISION}'")


@pytest.mark.parametrize("url", ["mysql://localhost/x", "sqlite://", "nonsense"])
def test_a_url_of_another_kind_is_refused_by_name(url):
    with pytest.raises(SettingsError):
        Database(url)
