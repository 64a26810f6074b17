"""Prepared statements: the same rows, transactions and errors as SQLAlchemy's own, on both databases."""

import pytest
import sqlalchemy as sa

from filmgate.database.engine import Database
from filmgate.database.migration import migrate
from filmgate.database.prepared import Prepared
from filmgate.database.schema import accounts, durations, tenants
from filmgate.errors import QueueUnavailable

INSERT = Prepared(sa.insert(accounts))
FIND = Prepared(sa.select(accounts).where(accounts.c.tenant_id == sa.bindparam("own")))
GROW = Prepared(
    sa.update(accounts)
    .where(accounts.c.tenant_id == sa.bindparam("own"))
    .values(queued=accounts.c.queued + 7)
    .returning(accounts.c.queued)
)


@pytest.fixture
def database(database_url):
    database = Database(database_url)
    migrate(database)
    yield database
    database.close()


def add(database, name="acme", weight=2.5):
    with database.write() as connection:
        INSERT.run(connection, {"tenant_id": name, "weight": weight, "max_running": None})


def test_a_row_comes_back_by_column_name(database):
    add(database)
    with database.read() as connection:
        found = FIND.first(connection, {"own": "acme"})
        expected = connection.execute(sa.select(accounts)).mappings().one()
    assert found == dict(expected)
    assert found["weight"] == 2.5
    assert found["max_running"] is None


def test_no_row_is_none(database):
    with database.read() as connection:
        assert FIND.first(connection, {"own": "nobody"}) is None
    assert database.look_up(FIND, {"own": "nobody"}) is None


def test_values_that_are_part_of_the_statement_need_not_be_given(database):
    add(database)
    with database.write() as connection:
        assert GROW.first(connection, {"own": "acme"}) == {"queued": 7}
        assert GROW.first(connection, {"own": "acme"}) == {"queued": 14}


def test_it_belongs_to_the_transaction_it_runs_in(database):
    with pytest.raises(ZeroDivisionError), database.write() as connection:
        INSERT.run(connection, {"tenant_id": "acme", "weight": 1.0, "max_running": None})
        assert FIND.first(connection, {"own": "acme"}) is not None
        raise ZeroDivisionError
    assert database.look_up(FIND, {"own": "acme"}) is None


def test_a_look_up_sees_what_was_committed_a_moment_ago(database):
    assert database.look_up(FIND, {"own": "acme"}) is None
    add(database)
    assert database.look_up(FIND, {"own": "acme"})["queued"] == 0
    with database.write() as connection:
        GROW.run(connection, {"own": "acme"})
    assert database.look_up(FIND, {"own": "acme"})["queued"] == 7


def test_a_look_up_gives_its_connection_back_without_a_transaction(database_url, database):
    add(database)
    database.look_up(FIND, {"own": "acme"})
    assert database.engine.pool.checkedout() == 0
    other = Database(database_url, timeout_seconds=0.2)
    with other.write() as connection:
        connection.execute(sa.delete(accounts))
    other.close()
    assert database.look_up(FIND, {"own": "acme"}) is None


def test_a_broken_rule_of_the_schema_is_the_error_sqlalchemy_has_for_it(database):
    add(database)
    with pytest.raises(sa.exc.IntegrityError), database.write() as connection:
        INSERT.run(connection, {"tenant_id": "acme", "weight": 1.0, "max_running": None})


def test_no_value_is_quoted_in_an_error(database):
    insert = Prepared(sa.insert(tenants))
    values = {
        "id": "a", "share": "secret-words", "scopes": "[]", "is_enabled": True, "created_at": 0.0,
        "screening": "{}",
    }  # fmt: skip
    with pytest.raises(sa.exc.IntegrityError) as caught, database.write() as connection:
        insert.run(connection, values)
        insert.run(connection, values)
    assert "secret-words" not in str(caught.value)


def test_a_database_that_cannot_be_used_is_unavailable_not_broken(tmp_path):
    holder, impatient = (Database(f"sqlite:///{tmp_path / 'one.db'}", timeout_seconds=t) for t in (5.0, 0.1))
    with holder.write(), pytest.raises(QueueUnavailable, match="locked"):
        impatient.look_up(Prepared(sa.text("BEGIN IMMEDIATE")), {})
    holder.close()
    impatient.close()


def test_a_connection_the_server_ended_is_unavailable_once_then_replaced(postgres_url):
    database = Database(postgres_url)
    with pytest.raises(QueueUnavailable):
        database.look_up(Prepared(sa.text("SELECT pg_terminate_backend(pg_backend_pid())")), {})
    assert database.look_up(Prepared(sa.text("SELECT 1 AS one")), {}) == {"one": 1}
    database.close()


def test_a_statement_may_be_spelled_for_each_dialect(database):
    grown = {"observations": durations.c.observations + 1}
    spellings = {
        name: insert(durations).on_conflict_do_update(index_elements=["kind", "model", "bucket"], set_=grown)
        for name, insert in (
            ("sqlite", sa.dialects.sqlite.insert),
            ("postgresql", sa.dialects.postgresql.insert),
        )
    }
    count = Prepared(spellings)
    bucket = {"kind": "wait", "model": "m", "bucket": 1, "observations": 1, "seconds": 0.5}
    with database.write() as connection:
        count.run(connection, bucket)
        count.run(connection, bucket)
        assert connection.execute(sa.select(durations.c.observations)).scalar_one() == 2
