"""Databases of other versions are upgraded or refused; the migrations lead to the schema of the code."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from filmgate.database.engine import Database
from filmgate.database.migration import migrate
from filmgate.database.schema import REVISION, metadata
from filmgate.errors import QueueUnavailable, SettingsError


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


def test_a_database_of_a_pre_release_is_refused_untouched(empty_database):
    with empty_database.write() as connection:
        connection.exec_driver_sql("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
        connection.exec_driver_sql("INSERT INTO alembic_version VALUES ('0005')")
        connection.exec_driver_sql("CREATE TABLE loads (tenant_id VARCHAR(64))")
    with pytest.raises(QueueUnavailable, match="created by a pre-release .* use a new data folder"):
        migrate(empty_database)
    assert set(sa.inspect(empty_database.engine).get_table_names()) == {"alembic_version", "loads"}


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
