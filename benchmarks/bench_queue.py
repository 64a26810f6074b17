"""The cost of a lease with a short and a long queue, on SQLite and PostgreSQL.

It must not grow with the length of the queue. The benchmark leases from both in turns, so other load on the
machine affects both.
"""

import time
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from benchmarks.queue_databases import (
    MODEL,
    DatabaseUrl,
    Engines,
    fill_queue,
    make_ticket,
    opened_databases,
    opened_servers,
)
from benchmarks.report import JsonFlag, print_report, run
from filmgate.jobs import Clip, StageSeconds, WorkerId
from filmgate.scheduling import open_queue
from filmgate.scheduling.base import AttemptResult, JobQueue, Offer
from filmgate.settings import QueueSettings
from filmgate.store.keys.data_keys import DataKeys
from filmgate.store.keys.files import FileKeyring

OFFER = Offer(WorkerId("bench"), (MODEL,))
RESULT = AttemptResult(Clip("clip-1.mp4", 1, ""), StageSeconds(denoise=1.0))


def main(
    engines: Engines = "sqlite,postgresql",
    database_url: DatabaseUrl = None,
    short: Annotated[int, typer.Option(min=1, help="Waiting jobs in the short queue.")] = 100,
    long: Annotated[int, typer.Option(min=1, help="Waiting jobs in the long queue.")] = 100_000,
    leases: Annotated[int, typer.Option(min=100, help="Timed leases per queue.")] = 2000,
    is_json: JsonFlag = False,
) -> None:
    """Lease from a short and a long queue, in turns."""
    settings = {"short": short, "long": long, "leases": leases}
    with opened_servers(engines, database_url) as servers:
        results = {name: measure_leases(url, (short, long), leases) for name, url in servers.items()}
    ratios = {
        f"{name}_long_to_short_{figure.removesuffix('_ms')}": round(
            costs["long"][figure] / costs["short"][figure], 3
        )
        for name, costs in results.items()
        for figure in ("median_ms", "p99_ms")
    }
    print_report("queue", settings, results, ratios, is_json=is_json)


def measure_leases(url: str | None, lengths: tuple[int, int], leases: int) -> dict[str, dict[str, float]]:
    """Milliseconds of one lease from each queue: in SQLite files without a URL, or on that server."""
    milliseconds: dict[str, list[float]] = {"short": [], "long": []}
    with (
        TemporaryDirectory() as folder,
        opened_databases(url, Path(folder), tuple(milliseconds)) as databases,
    ):
        keys = DataKeys(FileKeyring(Path(folder) / "keys"))
        for database, waiting in zip(databases, lengths, strict=True):
            fill_queue(database, keys, waiting)
        queues = [open_queue(database, keys, QueueSettings(lease_seconds=3600)) for database in databases]
        for number in range(leases):
            for queue, costs in zip(queues, milliseconds.values(), strict=True):
                costs.append(time_lease(queue, number))
    return {
        name: {"median_ms": round(median(costs), 3), "p99_ms": round(quantiles(costs, n=100)[98], 3)}
        for name, costs in milliseconds.items()
    }


def time_lease(queue: JobQueue, number: int) -> float:
    """Milliseconds of one lease. The job is then completed and replaced, which is not timed."""
    started = time.perf_counter()
    lease = queue.lease(OFFER)
    milliseconds = (time.perf_counter() - started) * 1000
    assert lease is not None
    queue.complete(lease, RESULT)
    queue.enqueue(make_ticket(number))
    return milliseconds


if __name__ == "__main__":
    run(main)
