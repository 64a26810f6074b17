"""How late a waiting process learns about a job: after an interval, and after a commit (ADR 111).

    python -m benchmarks.bench_wake

A second process stands for the worker: it waits, leases, and ends each job at once. This process enqueues
jobs and waits for their end as the server does for its event streams. Medians, on one SQLite database.
"""

import multiprocessing
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from benchmarks.queue_databases import SPEC
from benchmarks.report import JsonFlag, print_report, run
from filmgate.database import Database, open_database
from filmgate.database.commits import CommitSignal
from filmgate.jobs import Failure, Idempotency, Reason, StageSeconds, TenantId, Ticket, WorkerId
from filmgate.scheduling import open_reader
from filmgate.scheduling.base import AttemptFailure, Offer
from filmgate.scheduling.queue import SqlQueue
from filmgate.scheduling.wakers.poll import PollWaker
from filmgate.settings import ApiSettings, QueueSettings
from filmgate.store.keys.data_keys import DataKeys
from filmgate.store.keys.files import FileKeyring

_ENDED = AttemptFailure(Failure(Reason.CANCELLED, "the benchmark ends every job"), is_retryable=False)
_TENANT = TenantId("bench")
_STOP_SECONDS = 30.0


class IntervalOnly(CommitSignal):
    """Sees no commit, so that every wait takes its whole time."""

    def _has_changed(self) -> bool:
        return False


WAYS: dict[str, type[CommitSignal]] = {"interval": IntervalOnly, "commit": CommitSignal}


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Jobs per way of waiting.")] = 30,
    is_json: JsonFlag = False,
) -> None:
    """Measure from the enqueue to the lease, and from the end of a job to its reader."""
    with TemporaryDirectory() as folder:
        results = {way: measure(Path(folder), way, rounds) for way in WAYS}
    ratios = {name: round(value / results["interval"][name], 3) for name, value in results["commit"].items()}
    print_report("wake", {"rounds": rounds}, results, ratios, is_json=is_json)


def measure(folder: Path, way: str, rounds: int) -> dict[str, float]:
    """Medians in milliseconds of one way of waiting."""
    database, queue = open_parts(folder, way)
    signal = WAYS[way](database)
    reader = open_reader(database, open_keys(folder))
    leased, seen = [], []
    with working(folder, way):
        for number in range(rounds + 1):
            time.sleep(random.uniform(0.0, QueueSettings().poll_seconds))
            ticket = Ticket(_TENANT, SPEC, StageSeconds(), 90.0, idempotency=Idempotency(f"{way}-{number}"))
            job = queue.enqueue(ticket)
            while not job.state.is_final:
                signal.wait(ApiSettings().watch_seconds)
                job = next(iter(reader.changes({job.id: job.revision})), job)
            if number:  # the first job also waits for the start of the worker
                leased.append(_since(job.created_at, job.started_at))
                seen.append(_since(job.finished_at, time.time()))
    database.close()
    return {"enqueued_to_leased_ms": median(leased), "ended_to_seen_ms": median(seen)}


def _since(began: float | None, ended: float | None) -> float:
    assert began is not None
    assert ended is not None
    return round(1000 * (ended - began), 1)


def open_keys(folder: Path) -> DataKeys:
    return DataKeys(FileKeyring(folder / "keys"))


def open_parts(folder: Path, way: str) -> tuple[Database, SqlQueue]:
    settings = QueueSettings()
    database = open_database(settings, folder)
    waker = PollWaker(WAYS[way](database), settings.poll_seconds)
    return database, SqlQueue(database, open_keys(folder), settings, waker)


@contextmanager
def working(folder: Path, way: str) -> Iterator[None]:
    """A process that ends every job as soon as it learns about it."""
    spawn = multiprocessing.get_context("spawn")
    stop = spawn.Event()
    process = spawn.Process(target=work, args=(folder, way, stop))
    process.start()
    try:
        yield
    finally:
        stop.set()
        process.join(_STOP_SECONDS)


def work(folder: Path, way: str, stop: "multiprocessing.synchronize.Event") -> None:
    _, queue = open_parts(folder, way)
    offer = Offer(WorkerId("bench"), (SPEC.model,), device="cpu")
    while not stop.is_set():
        if (lease := queue.lease(offer)) is None:
            queue.wait(offer, stop.is_set)
        else:
            queue.fail_attempt(lease, _ENDED)


if __name__ == "__main__":
    run(main)
