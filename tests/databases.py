"""Database fixtures: a SQLite file and a PostgreSQL server."""

import os
import secrets
import shutil

import pytest
import sqlalchemy as sa

from filmgate.database.engine import Database
from filmgate.database.migration import migrate
from filmgate.database.schema import metadata
from tests.postgres import PostgresServer

DATABASE_VARIABLE = "FILMGATE_TEST_DATABASE_URL"


@pytest.fixture(scope="session")
def postgres_server_url():
    """The server at FILMGATE_TEST_DATABASE_URL, or a temporary one for the session."""
    if given := os.environ.get(DATABASE_VARIABLE):
        yield given
        return
    server = PostgresServer()
    # Without flushes: what it has written survives its own crash, and no test cuts the power.
    yield server.start("-c", "fsync=off").url
    server.remove()


@pytest.fixture(scope="session")
def postgres_url(postgres_server_url):
    """A temporary database on that server, at the newest schema."""
    name = f"filmgate_test_{secrets.token_hex(4)}"
    server = sa.create_engine(
        sa.make_url(postgres_server_url).set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT"
    )
    with server.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    url = sa.make_url(postgres_server_url).set(database=name).render_as_string(hide_password=False)
    database = Database(url)
    migrate(database)
    database.close()
    yield url
    with server.connect() as connection:
        connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
    server.dispose()


def empty_tables(url):
    """Delete everything in a PostgreSQL database at the newest schema."""
    database = Database(url)
    with database.write() as connection:
        connection.exec_driver_sql(f"TRUNCATE {', '.join(metadata.tables)}")
    database.close()


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory):
    """The file of an empty database at the newest schema."""
    path = tmp_path_factory.mktemp("sqlite") / "filmgate.db"
    database = Database(f"sqlite:///{path}")
    migrate(database)
    database.close()
    return path


@pytest.fixture
def database(sqlite_template, tmp_path):
    """An empty database in a file, at the newest schema."""
    database = Database(f"sqlite:///{shutil.copyfile(sqlite_template, tmp_path / 'filmgate.db')}")
    yield database
    database.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request, tmp_path):
    """Both databases in turn, empty, at the newest schema."""
    if request.param == "sqlite":
        copy = shutil.copyfile(request.getfixturevalue("sqlite_template"), tmp_path / "filmgate.db")
        return f"sqlite:///{copy}"
    url = request.getfixturevalue("postgres_url")
    empty_tables(url)
    return url
