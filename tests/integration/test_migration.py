"""A database of any earlier version comes up to date with its jobs intact."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from filmgate.database.engine import Database
from filmgate.database.migration import migrate
from filmgate.database.schema import REVISION, metadata
from filmgate.errors import QueueUnavailable, SettingsError
from filmgate.scheduling import open_queue
from filmgate.scheduling.rows import seal_prompt, to_row
from filmgate.settings import QueueSettings
from filmgate.store.keys.cache import DataKeys
from filmgate.store.keys.files import FileKeyring
from filmgate.store.keys.sealing import Sealer
from tests.tickets import make_offer, make_ticket


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
        migrate(database)
    database.close()


def test_a_database_of_the_first_version_is_upgraded_with_its_jobs(empty_database, tmp_path):
    migrate(empty_database, "0001")
    assert "tenants" not in sa.inspect(empty_database.engine).get_table_names()
    keys = DataKeys(FileKeyring(tmp_path / "keys"))
    ticket = make_ticket()
    write_as_then(empty_database, ticket, seal_prompt(Sealer(keys), ticket))
    migrate(empty_database)
    lease = open_queue(empty_database, keys, QueueSettings()).lease(make_offer())
    assert lease.job.spec == ticket.spec


def write_as_then(database, ticket, sealed_prompt):
    """What the first version's `enqueue` wrote: the columns there were, and the counters."""
    then = sa.MetaData()
    then.reflect(database.engine)
    row = to_row(ticket, 1000.0, sealed_prompt)
    lane = {"tenant_id": ticket.tenant_id, "route": "gpu", "model": ticket.spec.model}
    rows = {
        "jobs": {name: value for name, value in row.items() if name in then.tables["jobs"].c},
        "accounts": {"tenant_id": ticket.tenant_id, "weight": 1.0, "queued": 1},
        "loads": lane | {"state": "queued", "reason": "", "jobs": 1, "gpu_seconds": 10.0},
    }
    with database.write() as connection:
        for name, values in rows.items():
            connection.execute(sa.insert(then.tables[name]), values)


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
