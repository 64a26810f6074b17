"""Queues on every database with clocks that tests move, and every store."""

from dataclasses import dataclass

import pytest

from filmgate.database.engine import Database
from filmgate.scheduling import open_queue, open_reader
from filmgate.scheduling.base import JobQueue, JobReader
from filmgate.settings import QueueSettings
from filmgate.store.keys.data_keys import DataKeys
from filmgate.store.keys.files import FileKeyring
from tests.sqs_pair import SqsPair
from tests.stores import rig  # noqa: F401 - fixture

NOON = 1_800_000_000.0 - 1_800_000_000 % 86400 + 43200


@dataclass
class Clocks:
    """Wall time and steady time. `pass_time` moves both, `step` only the wall clock."""

    wall: float = NOON
    steady: float = 10_000.0

    def pass_time(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds

    def step(self, seconds: float) -> None:
        self.wall += seconds


@dataclass
class Bench:
    """A queue, its reader, its database and its clocks."""

    database: Database
    queue: JobQueue
    reader: JobReader
    clocks: Clocks
    settings: QueueSettings


@pytest.fixture
def waker(request):
    """The settings of a waker. Suites choose it with `indirect=True`.

    Tests move the clock, so nothing waits for real seconds: an empty receive returns at once.
    """
    kind = getattr(request, "param", "poll")
    if kind == "poll":
        return {}
    if kind == "notify":
        return {"waker": "notify", "wait_seconds": 0}
    site = SqsPair(request.getfixturevalue("aws_url"))
    return site.settings | {"wait_seconds": 0, "sweep_seconds": 0}


@pytest.fixture
def bench(database_url, waker, tmp_path):
    clocks = Clocks()
    settings = QueueSettings(lease_seconds=30, backoff_seconds=2, max_attempts=3, **waker)
    # Threads of a test wait for each other's locks; on a busy machine, longer than the default of 5 s.
    waits = {"timeout_seconds": 60.0}
    database = Database(database_url, clock=lambda: clocks.wall, steady_clock=lambda: clocks.steady, **waits)
    keys = DataKeys(FileKeyring(tmp_path / "keys"))
    queue, reader = open_queue(database, keys, settings), open_reader(database, keys)
    yield Bench(database, queue, reader, clocks, settings)
    database.close()


@pytest.fixture
def queue(bench):
    return bench.queue


@pytest.fixture
def reader(bench):
    return bench.reader


@pytest.fixture
def clocks(bench):
    return bench.clocks
