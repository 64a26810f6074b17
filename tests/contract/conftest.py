"""The queue under contract, with clocks the test turns by hand, and every store."""

from dataclasses import dataclass

import pytest

from filmgate.database.engine import Database
from filmgate.database.migration import migrate
from filmgate.scheduling import open_queue, open_reader
from filmgate.scheduling.base import JobQueue, JobReader
from filmgate.settings import QueueSettings
from filmgate.store.keys.cache import DataKeys
from filmgate.store.keys.files import FileKeyring
from tests.sqs_pair import SqsPair
from tests.stores import rig  # noqa: F401 - fixture

NOON = 1_800_000_000.0 - 1_800_000_000 % 86400 + 43200


@dataclass
class Clocks:
    """Wall time and steady time; `pass_time` moves both, `step` moves the wall alone."""

    wall: float = NOON
    steady: float = 10_000.0

    def pass_time(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds

    def step(self, seconds: float) -> None:
        self.wall += seconds


@dataclass
class Bench:
    """A queue and everything it stands on."""

    database: Database
    queue: JobQueue
    reader: JobReader
    clocks: Clocks
    settings: QueueSettings


@pytest.fixture
def waker(request):
    """How workers hear of jobs: they ask the database, or SQS wakes them. Suites choose by parameter.

    The clock is turned by hand, so nothing may wait for a real second: an empty receive looks at once.
    """
    if getattr(request, "param", "poll") == "poll":
        return {}
    site = SqsPair(request.getfixturevalue("aws_url"))
    return site.settings | {"wait_seconds": 0, "sweep_seconds": 0}


@pytest.fixture
def bench(database_url, waker, tmp_path):
    clocks = Clocks()
    settings = QueueSettings(lease_seconds=30, backoff_seconds=2, max_attempts=3, **waker)
    database = Database(database_url, clock=lambda: clocks.wall, steady_clock=lambda: clocks.steady)
    migrate(database)
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
