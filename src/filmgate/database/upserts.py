"""INSERT ... ON CONFLICT on SQLite and PostgreSQL."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite


def insert_into(connection: sa.Connection, table: sa.Table) -> sqlite.Insert | postgresql.Insert:
    """An INSERT that may have an ON CONFLICT clause."""
    return insert_for(connection.dialect.name, table)


def add_up(
    connection: sa.Connection,
    table: sa.Table,
    rows: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    *sums: str,
    newest: tuple[str, ...] = (),
) -> None:
    """Insert rows of counters, or add their sums to the rows with the same key and replace the `newest`."""
    connection.execute(_add_statement(connection.dialect.name, table, sums, newest), rows)


@cache
def _add_statement(
    dialect: str, table: sa.Table, sums: tuple[str, ...], newest: tuple[str, ...]
) -> sa.Executable:
    statement = insert_for(dialect, table)
    grown = {name: table.c[name] + statement.excluded[name] for name in sums}
    grown |= {name: sa.func.coalesce(statement.excluded[name], table.c[name]) for name in newest}
    return statement.on_conflict_do_update(index_elements=list(table.primary_key.columns), set_=grown)


def insert_for(dialect: str, table: sa.Table) -> sqlite.Insert | postgresql.Insert:
    """An INSERT that may have an ON CONFLICT clause, for statements that are built once."""
    return sqlite.insert(table) if dialect == "sqlite" else postgresql.insert(table)
