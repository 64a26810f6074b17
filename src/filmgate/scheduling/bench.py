"""Does a claim cost the same at any backlog? Two queues, one short, one long, claimed from in turns."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory

import sqlalchemy as sa

from filmgate.database.engine import Database
from filmgate.database.migration import migrate
from filmgate.database.schema import accounts, jobs, loads
from filmgate.jobs import (
    Clip,
    Idempotency,
    JobState,
    Route,
    StageSeconds,
    TenantId,
    Ticket,
    VideoSpec,
    WorkerId,
)
from filmgate.scheduling.base import Finish, JobQueue, Offer
from filmgate.scheduling.queue import SqlQueue
from filmgate.scheduling.rows import seal_prompt, to_row
from filmgate.settings import QueueSettings
from filmgate.store.keys.cache import DataKeys
from filmgate.store.keys.files import FileKeyring
from filmgate.store.keys.sealing import Sealer

MODEL, TENANTS, BATCH = "bench", 10, 5000
OFFER = Offer(WorkerId("bench"), (MODEL,))
FINISH = Finish(Clip("clip-1.mp4", 1, ""), StageSeconds(denoise=1.0))


@dataclass(frozen=True, slots=True)
class ClaimCost:
    """Milliseconds of one claim with this many jobs waiting."""

    waiting: int
    median_ms: float
    p99_ms: float


def measure_claims(url: str | None, backlogs: tuple[int, int], claims: int) -> tuple[ClaimCost, ClaimCost]:
    """The cost of a claim at each backlog: SQLite files without a URL, or two databases on that server."""
    with TemporaryDirectory() as folder, open_databases(url, Path(folder)) as databases:
        keys = DataKeys(FileKeyring(Path(folder) / "keys"))
        queues = []
        for database, waiting in zip(databases, backlogs, strict=True):
            migrate(database)
            fill_queue(database, Sealer(keys), waiting)
            queues.append(SqlQueue(database, keys, QueueSettings(lease_seconds=3600)))
        milliseconds: tuple[list[float], list[float]] = ([], [])
        # In turns, so that whatever else the machine does meets both alike.
        for number in range(claims):
            for queue, costs in zip(queues, milliseconds, strict=True):
                costs.append(_claim(queue, number))
        short, long = (_cost(n, costs) for n, costs in zip(backlogs, milliseconds, strict=True))
        return short, long


def _claim(queue: JobQueue, number: int) -> float:
    """One timed claim; what keeps the backlog at its length is not timed."""
    started = time.perf_counter()
    lease = queue.lease(OFFER)
    spent = (time.perf_counter() - started) * 1000
    if lease is None:
        raise AssertionError("a queue with jobs gave none")
    queue.complete(lease, FINISH)
    queue.enqueue(_ticket(number))
    return spent


def _ticket(number: int) -> Ticket:
    return Ticket(
        tenant_id=TenantId(f"tenant-{number % TENANTS}"),
        spec=VideoSpec(model=MODEL, prompt="a red ball", width=1280, height=720, seconds=5, fps=16),
        predicted=StageSeconds(denoise=10.0),
        slo_seconds=90.0,
        idempotency=Idempotency(f"digest-{number}"),
    )


def fill_queue(database: Database, sealer: Sealer, waiting: int, now: float = 1.0) -> None:
    """What `enqueue` would have written, in bulk."""
    for begin in range(0, waiting, BATCH):
        rows = []
        for number in range(begin, min(begin + BATCH, waiting)):
            ticket = _ticket(number)
            rows.append(to_row(ticket, now + number / waiting, seal_prompt(sealer, ticket)))
        with database.write() as connection:
            connection.execute(sa.insert(jobs), rows)
    with database.write() as connection:
        for number in range(TENANTS):
            count = len(range(number, waiting, TENANTS))
            own = {"tenant_id": f"tenant-{number}"}
            connection.execute(sa.insert(accounts).values(own | {"weight": 1.0, "queued": count}))
            lane = own | {"route": Route.GPU, "model": MODEL, "state": JobState.QUEUED, "reason": ""}
            connection.execute(sa.insert(loads).values(lane | {"jobs": count, "gpu_seconds": 10.0 * count}))
        connection.exec_driver_sql("ANALYZE")


@contextmanager
def open_databases(
    url: str | None, folder: Path, names: tuple[str, ...] = ("short", "long")
) -> Iterator[list[Database]]:
    """Empty databases that are gone when the block ends: SQLite files, or databases on that server."""
    if url is None:
        databases = [Database(f"sqlite:///{folder / name}.db") for name in names]
        yield databases
        for database in databases:
            database.close()
        return
    with _server(url) as execute:
        own = [f"filmgate_bench_{name}_{time.time_ns()}" for name in names]
        for name in own:
            execute(f"CREATE DATABASE {name}")
        databases = [Database(_rename(url, name)) for name in own]
        try:
            yield databases
        finally:
            for database, name in zip(databases, own, strict=True):
                database.close()
                execute(f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def _server(url: str) -> Iterator[Callable[[str], object]]:
    server = Database(url)
    with server.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        yield connection.exec_driver_sql
    server.close()


def _rename(url: str, name: str) -> str:
    return sa.make_url(url).set(database=name).render_as_string(hide_password=False)


def _cost(waiting: int, costs: list[float]) -> ClaimCost:
    return ClaimCost(waiting, round(median(costs), 3), round(quantiles(costs, n=100)[98], 3))
