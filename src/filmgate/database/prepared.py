"""Statements of the hot path, compiled once and run on the driver.

SQLAlchemy spends several times what SQLite takes to run a small statement. What every create does goes past
it, inside the same transactions and with the same errors.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import sqlalchemy as sa
from sqlalchemy import exc as sa_exc
from sqlalchemy.dialects import sqlite
from sqlalchemy.pool import PoolProxiedConnection

Values: TypeAlias = Mapping[str, Any]
Found: TypeAlias = dict[str, Any]

# Values by name, as psycopg has them; sqlite3 can do both.
_NAMED_SQLITE: sa.Dialect = sqlite.dialect(paramstyle="named")


@dataclass(frozen=True, slots=True)
class _Text:
    """What a driver is given. `constants` are the values that are part of the statement itself."""

    sql: str
    constants: Values


class Prepared:
    """One statement, for every driver; or one for each dialect, where they spell it differently.

    Values go in by name, always the same names. Rows come back as the driver has them: on SQLite a boolean
    is 0 or 1.
    """

    def __init__(self, statement: sa.Executable | Mapping[str, sa.Executable]) -> None:
        self._statement = statement
        self._texts: dict[str, _Text] = {}

    def run(self, connection: sa.Connection, values: Values) -> None:
        """Run it for its effect, within the connection's transaction."""
        self._execute(connection.dialect, connection.connection, values).close()

    def first(self, connection: sa.Connection, values: Values) -> Found | None:
        """The first row by column name, None when there is none."""
        return self.first_of(connection.dialect, connection.connection, values)

    def first_of(
        self, dialect: sa.Dialect, connection: PoolProxiedConnection, values: Values
    ) -> Found | None:
        """`first` on a connection that SQLAlchemy has only lent."""
        cursor = self._execute(dialect, connection, values)
        row, names = cursor.fetchone(), [column[0] for column in cursor.description]
        cursor.close()
        return dict(zip(names, row, strict=True)) if row is not None else None

    def _execute(self, dialect: sa.Dialect, connection: PoolProxiedConnection, values: Values) -> Any:
        text = self._texts.get(dialect.name) or self._compile(dialect, values)
        driver: Any = connection.driver_connection
        try:
            return driver.execute(text.sql, {**text.constants, **values})
        except dialect.loaded_dbapi.Error as exc:
            raise _wrap(dialect, connection, exc) from exc

    def _compile(self, dialect: sa.Dialect, values: Values) -> _Text:
        statement = self._statement
        if isinstance(statement, Mapping):
            statement = statement[dialect.name]
        named = _NAMED_SQLITE if dialect.name == "sqlite" else dialect
        compiled = statement.compile(dialect=named, column_keys=list(values))  # type: ignore[attr-defined]
        constants = {name: value for name, value in compiled.params.items() if name not in values}
        text = self._texts[dialect.name] = _Text(str(compiled), constants)
        return text


def _wrap(dialect: sa.Dialect, connection: PoolProxiedConnection, error: Exception) -> BaseException:
    """The error SQLAlchemy would have raised; a connection that is gone is not used again."""
    is_gone = dialect.is_disconnect(error, connection, None)  # type: ignore[arg-type]
    if is_gone:
        connection.invalidate(error)
    return sa_exc.DBAPIError.instance(
        None, None, error, dialect.loaded_dbapi.Error, connection_invalidated=is_gone, dialect=dialect
    )
