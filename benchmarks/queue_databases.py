"""Databases with many waiting jobs, for bench_queue and bench_routing."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import sqlalchemy as sa
import typer

from filmgate.database.engine import Database
from filmgate.database.migration import migrate
from filmgate.database.schema import accounts, job_counts, jobs
from filmgate.database.upserts import insert_into
from filmgate.errors import UsageError
from filmgate.jobs import Idempotency, JobState, Route, StageSeconds, TenantId, Ticket, VideoSpec
from filmgate.scheduling.rows import to_row
from filmgate.store.keys.data_keys import DataKeys, Sealer
from tests.postgres import PostgresServer

MODEL, TENANTS, ROWS_PER_INSERT, SLO_SECONDS = "bench", 10, 5000, 90.0
SPEC = VideoSpec(model=MODEL, prompt="a red ball", width=1280, height=720, seconds=5, fps=16)
ENGINES = ("sqlite", "postgresql")
URL_VARIABLE = "FILMGATE_TEST_DATABASE_URL"

Engines = Annotated[str, typer.Option(help="Comma-separated: sqlite, postgresql.")]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        envvar=URL_VARIABLE,
        help="A PostgreSQL server on which databases may be created. Default: starts a temporary server.",
    ),
]


@contextmanager
def opened_servers(engines: str, url: str | None) -> Iterator[dict[str, str | None]]:
    """The server URL of each engine, None for SQLite; a temporary PostgreSQL server is removed at the end."""
    names = engines.split(",")
    if unknown := set(names) - set(ENGINES):
        raise UsageError(f"unknown: {', '.join(unknown)}; known: {', '.join(ENGINES)}", option="--engines")
    with ExitStack() as stack:
        if "postgresql" in names and url is None:
            server = PostgresServer()
            stack.callback(server.remove)
            url = server.start().url
        yield {name: url if name == "postgresql" else None for name in names}


@contextmanager
def opened_databases(url: str | None, folder: Path, names: Sequence[str]) -> Iterator[list[Database]]:
    """Migrated, empty databases: SQLite files, or databases on the server that are dropped at the end."""
    with ExitStack() as stack:
        if url is None:
            urls = [f"sqlite:///{folder / name}.db" for name in names]
        else:
            urls = [stack.enter_context(_created_database(url, name)) for name in names]
        databases = [Database(own) for own in urls]
        for database in databases:
            stack.callback(database.close)
            migrate(database)
        yield databases


@contextmanager
def _created_database(url: str, name: str) -> Iterator[str]:
    own = f"filmgate_bench_{name}_{time.time_ns()}"
    with _connected(url) as execute:
        execute(f"CREATE DATABASE {own}")
        try:
            yield sa.make_url(url).set(database=own).render_as_string(hide_password=False)
        finally:
            execute(f"DROP DATABASE {own} WITH (FORCE)")


@contextmanager
def _connected(url: str) -> Iterator[Callable[[str], object]]:
    server = Database(url)
    with server.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        yield connection.exec_driver_sql
    server.close()


def make_ticket(number: int) -> Ticket:
    return Ticket(
        tenant_id=TenantId(f"tenant-{number % TENANTS}"),
        spec=SPEC,
        predicted=StageSeconds(denoise=10.0),
        slo_seconds=SLO_SECONDS,
        idempotency=Idempotency(f"digest-{number}"),
    )


def fill_queue(database: Database, keys: DataKeys, waiting: int, now: float = 1.0) -> None:
    """Write the rows that `enqueue` would write for this many jobs, in bulk."""
    sealer = Sealer(keys)
    for begin in range(0, waiting, ROWS_PER_INSERT):
        tickets = [make_ticket(n) for n in range(begin, min(begin + ROWS_PER_INSERT, waiting))]
        rows = [to_row(ticket, sealer, "") for ticket in tickets]
        for number, row in enumerate(rows, begin):
            row["created_at"] = now + number / waiting
            row["deadline_at"] = row["created_at"] + SLO_SECONDS
        with database.write() as connection:
            connection.execute(sa.insert(jobs), rows)
    with database.write() as connection:
        for number in range(TENANTS):
            count = len(range(number, waiting, TENANTS))
            tenant = {"tenant_id": f"tenant-{number}"}
            account = insert_into(connection, accounts).values(tenant | {"weight": 1.0, "queued": count})
            # The registry opens the accounts of its tenants.
            filled = account.on_conflict_do_update(index_elements=["tenant_id"], set_={"queued": count})
            connection.execute(filled)
            counted = tenant | {"route": Route.GPU, "model": MODEL, "state": JobState.QUEUED, "reason": ""}
            connection.execute(
                sa.insert(job_counts).values(counted | {"jobs": count, "gpu_seconds": 10.0 * count})
            )
        connection.exec_driver_sql("ANALYZE")
