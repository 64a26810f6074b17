"""A SQLAlchemy engine that keeps promises: durable writes, bounded waits, one error when it is down."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import sqlalchemy as sa
from sqlalchemy import exc as sa_exc
from sqlalchemy.engine import URL, make_url

from filmgate.database.prepared import Found, Prepared, Values
from filmgate.errors import QueueUnavailable, SettingsError

if TYPE_CHECKING:
    import sqlite3

Clock = Callable[[], float]
_SINCE_BOOT: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Database:
    """Transactions on SQLite or PostgreSQL, and the two clocks all its users agree on.

    `clock` and `steady_clock` replace the real ones in tests.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_seconds: float = 5.0,
        clock: Clock | None = None,
        steady_clock: Clock | None = None,
    ) -> None:
        self.url = parse_url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self.engine = (
            _sqlite(self.url, timeout_seconds) if self.is_sqlite else _postgres(self.url, timeout_seconds)
        )
        self._clock = clock
        self._steady_clock = steady_clock
        # SQLite has one writer. Threads of this process queue here instead of polling the file lock.
        self._turn = threading.Lock() if self.is_sqlite else nullcontext()

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """A snapshot to read from."""
        with translated_errors(), self.engine.connect() as connection:
            yield connection

    @contextmanager
    def write(self, *, is_durable: bool = True) -> Iterator[sa.Connection]:
        """A transaction: committed when the block ends, gone when it raises.

        Without `is_durable` the commit is not flushed: a power cut may forget it, nothing else can.
        """
        with translated_errors(), self._turn, self.engine.connect() as connection:
            level = "FULL" if is_durable else "NORMAL"
            with connection.execution_options(filmgate_synchronous=level).begin():
                if not self.is_sqlite and not is_durable:
                    connection.exec_driver_sql("SET LOCAL synchronous_commit = off")
                yield connection

    def look_up(self, statement: Prepared, values: Values) -> Found | None:
        """One row by one statement: its own snapshot, for a fraction of what `read` costs."""
        with translated_errors(), closing(self.engine.raw_connection()) as connection:
            return statement.first_of(self.engine.dialect, connection, values)

    def now(self, connection: sa.Connection) -> float:
        """Unix seconds, for people: the server's clock on PostgreSQL, the host's on SQLite."""
        if self._clock is not None:
            return self._clock()
        return time.time() if self.is_sqlite else _server_time(connection)

    def steady_now(self, connection: sa.Connection) -> float:
        """Seconds, for leases. SQLite is one host: its clock since boot is shared by all processes and no
        one can step it. On PostgreSQL it is the server's clock, whatever the workers' clocks say.
        """
        if self._steady_clock is not None:
            return self._steady_clock()
        return time.clock_gettime(_SINCE_BOOT) if self.is_sqlite else _server_time(connection)

    def close(self) -> None:
        self.engine.dispose()


def parse_url(url: str) -> URL:
    """The URL with its driver named; raises SettingsError for anything but SQLite and PostgreSQL."""
    try:
        parsed = make_url(url)
    except sa_exc.ArgumentError as exc:
        raise SettingsError("not a database URL", option="queue.url") from exc
    backend = parsed.get_backend_name()
    if backend in ("postgresql", "postgres"):
        return parsed.set(drivername="postgresql+psycopg")
    if backend == "sqlite" and parsed.database:
        return parsed
    raise SettingsError("expected sqlite:///FILE or postgresql://HOST/NAME", option="queue.url")


@contextmanager
def translated_errors() -> Iterator[None]:
    """The driver's many ways to say "not now" become QueueUnavailable; bugs pass through unchanged."""
    try:
        yield
    except (sa_exc.OperationalError, sa_exc.InterfaceError, sa_exc.TimeoutError) as exc:
        raise QueueUnavailable(f"the job database cannot be used: {_first_line(exc)}") from exc
    except sa_exc.DBAPIError as exc:
        if exc.connection_invalidated or getattr(exc.orig, "sqlstate", None) in _RETRYABLE_STATES:
            raise QueueUnavailable(f"the job database cannot be used: {_first_line(exc)}") from exc
        raise


# serialization_failure, deadlock_detected, lock_not_available, query_canceled, read_only_sql_transaction,
# disk_full
_RETRYABLE_STATES = {"40001", "40P01", "55P03", "57014", "25006", "53100"}


def _server_time(connection: sa.Connection) -> float:
    return float(connection.exec_driver_sql("SELECT extract(epoch FROM clock_timestamp())").scalar_one())


def _first_line(exc: sa_exc.SQLAlchemyError) -> str:
    origin = getattr(exc, "orig", None) or exc
    return (str(origin).splitlines() or [type(origin).__name__])[0]


def _sqlite(url: URL, timeout_seconds: float) -> sa.Engine:
    Path(url.database or "").parent.mkdir(parents=True, exist_ok=True)
    engine = sa.create_engine(
        url,
        connect_args={"timeout": timeout_seconds, "isolation_level": None, "check_same_thread": False},
        pool_size=8,
        max_overflow=24,
        pool_timeout=timeout_seconds,
    )

    @sa.event.listens_for(engine, "connect")
    def set_pragmas(connection: Any, _record: object) -> None:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        # Removed prompts must not live on in free pages.
        connection.execute("PRAGMA secure_delete = ON")

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        level = connection.get_execution_options().get("filmgate_synchronous")
        if level is None:
            # Straight to the driver: a deferred BEGIN takes no lock and cannot fail; every read pays for it.
            cast("sqlite3.Connection", connection.connection.driver_connection).execute("BEGIN")
            return
        if connection.info.get("synchronous") != level:
            connection.exec_driver_sql(f"PRAGMA synchronous = {level}")
            connection.info["synchronous"] = level
        # Taking the write lock first: a reader that upgrades later can only fail.
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _postgres(url: URL, timeout_seconds: float) -> sa.Engine:
    milliseconds = int(timeout_seconds * 1000)
    return sa.create_engine(
        url,
        connect_args={
            "connect_timeout": max(2, round(timeout_seconds)),
            "options": f"-c lock_timeout={milliseconds} -c statement_timeout={4 * milliseconds}",
        },
        # A connection the server dropped is replaced before use: recovery needs no restart.
        pool_pre_ping=True,
        pool_size=8,
        max_overflow=24,
        pool_timeout=timeout_seconds,
    )
