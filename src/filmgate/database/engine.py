"""A SQLAlchemy engine with durable writes, bounded waits and one error when the database is down."""

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import exc as sa_exc
from sqlalchemy.engine import URL, make_url

from filmgate.errors import QueueUnavailable, SettingsError

Clock = Callable[[], float]
_MOMENT = "filmgate_moment"
_SINCE_BOOT: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Moment(NamedTuple):
    """One moment on both clocks: Unix seconds, and the steady seconds of leases."""

    now: float
    steady_now: float


class Database:
    """Transactions on SQLite or PostgreSQL, and the two clocks that all processes share.

    `clock` and `steady_clock` replace the real ones in tests.
    """

    def __init__(
        self,
        url: str | URL,
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
        # SQLite has one writer. Threads of this process wait for this lock instead of polling the file lock.
        self._turn = threading.Lock()
        self._timeout_seconds = timeout_seconds

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """To read from. On PostgreSQL, each statement sees what was committed before it."""
        with translated_errors(), self.engine.connect() as connection:
            yield connection

    @contextmanager
    def read_snapshot(self) -> Iterator[sa.Connection]:
        """To read from: all statements see the same moment."""
        with self.read() as connection:
            if not self.is_sqlite:
                connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            yield connection

    @contextmanager
    def write(self, *, is_durable: bool = True) -> Iterator[sa.Connection]:
        """A transaction: committed when the block ends, rolled back when it raises.

        Without `is_durable` the commit is not flushed: it survives a crash of the process, not a power cut.
        """
        turn = self._take_turn() if self.is_sqlite else nullcontext()
        with translated_errors(), turn, self.engine.connect() as connection:
            level = "FULL" if is_durable else "NORMAL"
            connection.info.pop(_MOMENT, None)
            with connection.execution_options(filmgate_synchronous=level).begin():
                if not self.is_sqlite and not is_durable:
                    connection.exec_driver_sql("SET LOCAL synchronous_commit = off")
                yield connection

    @contextmanager
    def _take_turn(self) -> Iterator[None]:
        if not self._turn.acquire(timeout=self._timeout_seconds):
            raise QueueUnavailable("the job database is unavailable: other threads are writing")
        try:
            yield
        finally:
            self._turn.release()

    def now(self, connection: sa.Connection) -> float:
        """Unix seconds: the server's clock on PostgreSQL, the host's on SQLite."""
        if self._clock is not None:
            return self._clock()
        return time.time() if self.is_sqlite else _server_time(connection)

    def steady_now(self, connection: sa.Connection) -> float:
        """Seconds for leases. On SQLite, the host's clock since boot: shared by all processes and never
        stepped. On PostgreSQL, the server's clock.
        """
        if self._steady_clock is not None:
            return self._steady_clock()
        return time.clock_gettime(_SINCE_BOOT) if self.is_sqlite else _server_time(connection)

    def moment(self, connection: sa.Connection) -> Moment:
        """The moment at which a transaction changes jobs: read on the first call, which follows its locks."""
        if _MOMENT not in connection.info:
            now = self.now(connection)
            is_real = self._steady_clock is None and not self.is_sqlite
            connection.info[_MOMENT] = Moment(now, now if is_real else self.steady_now(connection))
        moment: Moment = connection.info[_MOMENT]
        return moment

    def open_apart(self) -> Any:
        """A driver connection outside the pool, with the same time limits. The caller closes it."""
        with translated_errors():
            pooled = self.engine.raw_connection()
        connection = pooled.driver_connection
        pooled.detach()
        return connection

    def close(self) -> None:
        self.engine.dispose()


def file_url(path: Path) -> URL:
    """The URL of a SQLite file. Its path may contain any character."""
    return URL.create("sqlite", database=str(path))


def parse_url(url: str | URL) -> URL:
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
    """Turns outages and a damaged file into QueueUnavailable; other errors pass through."""
    try:
        yield
    except (sa_exc.OperationalError, sa_exc.InterfaceError, sa_exc.TimeoutError) as exc:
        raise QueueUnavailable(f"the job database is unavailable: {_first_line(exc)}") from exc
    except sa_exc.DBAPIError as exc:
        if exc.connection_invalidated or getattr(exc.orig, "sqlstate", None) in _RETRYABLE_STATES:
            raise QueueUnavailable(f"the job database is unavailable: {_first_line(exc)}") from exc
        if getattr(exc.orig, "sqlite_errorcode", 0) & 0xFF in _DAMAGED_CODES:
            raise QueueUnavailable(
                f"the job database is damaged: {_first_line(exc)}; restore a backup with `filmgate restore`"
            ) from exc
        raise


_DAMAGED_CODES = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}  # without the bits of extended codes
# serialization_failure, deadlock_detected, lock_not_available, query_canceled, read_only_sql_transaction,
# disk_full
_RETRYABLE_STATES = {"40001", "40P01", "55P03", "57014", "25006", "53100"}


def _server_time(connection: sa.Connection) -> float:
    return float(connection.exec_driver_sql("SELECT extract(epoch FROM clock_timestamp())").scalar_one())


def _first_line(exc: sa_exc.SQLAlchemyError) -> str:
    origin = getattr(exc, "orig", None) or exc
    return (str(origin).splitlines() or [type(origin).__name__])[0]


def _make_private(path: Path) -> None:
    """Only the owner may read the database. SQLite gives its journal the same mode."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        if path.stat().st_uid == os.geteuid():
            path.chmod(0o600)
    except OSError as exc:
        raise QueueUnavailable(f"the job database is unavailable: {exc.strerror}") from exc


def _sqlite(url: URL, timeout_seconds: float) -> sa.Engine:
    _make_private(Path(url.database or ""))
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
        # Deleted prompts must not remain in free pages.
        connection.execute("PRAGMA secure_delete = ON")

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        level = connection.get_execution_options().get("filmgate_synchronous")
        if level is None:
            connection.exec_driver_sql("BEGIN")
            return
        if connection.info.get("synchronous") != level:
            connection.exec_driver_sql(f"PRAGMA synchronous = {level}")
            connection.info["synchronous"] = level
        # Take the write lock immediately: upgrading a read transaction later can fail.
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _postgres(url: URL, timeout_seconds: float) -> sa.Engine:
    seconds, milliseconds = max(2, round(timeout_seconds)), int(timeout_seconds * 1000)
    return sa.create_engine(
        url,
        connect_args={
            "connect_timeout": seconds,
            "options": f"-c lock_timeout={milliseconds} -c statement_timeout={4 * milliseconds}",
            # A failover or a lost zone closes no connection. Data that is not acknowledged, and probes of an
            # idle connection that are not answered, end it after about twice the timeout.
            "tcp_user_timeout": 2000 * seconds,
            "keepalives_idle": seconds,
            "keepalives_interval": max(1, seconds // 2),
            "keepalives_count": 2,
        },
        # Replaces a connection that the server has closed.
        pool_pre_ping=True,
        pool_size=8,
        max_overflow=24,
        pool_timeout=timeout_seconds,
    )
