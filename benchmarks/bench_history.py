"""What the history costs: the end of a job with and without it, and queries over a busy week.

All times are CPU times, which other load changes little. The database is SQLite in a temporary
folder; both kinds of jobs alternate in one run.
"""

import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Annotated
from unittest.mock import patch

import sqlalchemy as sa
import typer

from benchmarks.queue_databases import opened_databases
from benchmarks.report import JsonFlag, print_report, run
from filmgate.database.engine import Database
from filmgate.database.schema import job_history
from filmgate.scheduling import open_queue
from filmgate.scheduling.history import COARSE_SECONDS, FINE_SECONDS, History, Window
from filmgate.scheduling.queue import SqlQueue
from filmgate.settings import QueueSettings
from filmgate.store.keys.data_keys import DataKeys
from filmgate.store.keys.files import FileKeyring
from tests.tickets import RESULT, make_offer, make_ticket

TENANTS, MODELS, BUCKETS = 50, 3, 6


def _skip(*_: object) -> None:
    """Instead of counting the end of a job."""


def time_ends(queue: SqlQueue, jobs: int) -> tuple[float, float]:
    """CPU milliseconds of `complete`, with and without the history: the lower quartile."""
    found: dict[bool, list[float]] = {True: [], False: []}
    for number in range(2 * jobs):
        has_history = number % 2 == 0
        queue.enqueue(make_ticket())
        lease = queue.lease(make_offer())
        assert lease is not None
        with ExitStack() as patched:
            if not has_history:
                patched.enter_context(patch("filmgate.scheduling.transitions.record_end", new=_skip))
            start = time.process_time()
            queue.complete(lease, RESULT)
            found[has_history].append(1000 * (time.process_time() - start))
    return quantiles(found[True])[0], quantiles(found[False])[0]


def fill(database: Database, now: float) -> None:
    """A week of hours and two days of 5 minutes in which every tenant used every model."""
    spans = {COARSE_SECONDS: 7 * 86400, FINE_SECONDS: 2 * 86400}
    sums = {"jobs": 2, "late": 0, "seconds": 60.0, "gpu_seconds": 40.0, "provider_usd": 0.0}
    for width, span in spans.items():
        for at in range(int(now - span) // width * width, int(now) // width * width, width):
            rows = [
                {"width_seconds": width, "interval_at": at, "tenant_id": f"tenant-{tenant}", "route": "gpu"}
                | {"model": f"model-{model}", "reason": "", "bucket": 20 + bucket, **sums}
                for tenant in range(TENANTS)
                for model in range(MODELS)
                for bucket in range(BUCKETS if width == COARSE_SECONDS else 1)
            ]
            with database.write(is_durable=False) as connection:
                connection.execute(sa.insert(job_history), rows)


def time_query(history: History, seconds: float, period: int, group_by: tuple[str, ...], now: float) -> float:
    window = Window.around(now - seconds, now, period, now)
    start = time.process_time()
    history.read(window, group_by)
    return 1000 * (time.process_time() - start)


def main(
    jobs: Annotated[int, typer.Option(min=2, help="Jobs of each kind.")] = 300, is_json: JsonFlag = False
) -> None:
    """Complete jobs with and without the history, and query a busy week."""
    with TemporaryDirectory() as name, opened_databases(None, Path(name), ("history",)) as (database,):
        queue = open_queue(database, DataKeys(FileKeyring(Path(name) / "keys")), QueueSettings())
        with_history, without = time_ends(queue, jobs)
        now = time.time()
        fill(database, now)
        with database.read() as connection:
            rows = connection.execute(sa.select(sa.func.count()).select_from(job_history)).scalar_one()
        history = History(database)
        week = [time_query(history, 7 * 86400, 86400, ("tenant", "model"), now) for _ in range(5)]
        hour = [time_query(history, 3600, 300, (), now) for _ in range(5)]
    results = {
        "complete_cpu_ms": round(with_history, 3),
        "complete_without_history_cpu_ms": round(without, 3),
        "rows": rows,
        "week_by_day_tenant_and_model_cpu_ms": round(median(week), 1),
        "hour_by_5_minutes_cpu_ms": round(median(hour), 1),
    }
    ratios = {"with_to_without_history": round(with_history / without, 3)}
    print_report("history", {"jobs": jobs}, results, ratios, is_json=is_json)


if __name__ == "__main__":
    run(main)
