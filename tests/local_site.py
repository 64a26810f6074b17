"""A site for tests of the worker: SQLite, encrypted files and a worker in a thread."""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from filmgate.database.engine import Database
from filmgate.database.migration import migrate
from filmgate.errors import DeviceError
from filmgate.jobs import Route, TenantId, WorkerId
from filmgate.scheduling import open_queue, open_reader
from filmgate.settings import QueueSettings, WorkerSettings
from filmgate.store.base import ObjectName
from filmgate.store.keys.data_keys import DataKeys
from filmgate.store.keys.files import FileKeyring
from filmgate.store.local.store import LocalStore
from filmgate.worker.base import Output
from filmgate.worker.loop import Worker
from tests.pattern_runner import MODEL, PatternRunner
from tests.stores import parts_of
from tests.tickets import make_ticket
from tests.waiting import wait_until

ACME = TenantId("acme")
FAST = WorkerSettings(heartbeat_seconds=0.2, progress_seconds=0.02, drain_seconds=30)


@dataclass(frozen=True)
class Tapped:
    """A PatternRunner that calls `tap` before every output."""

    tap: object
    models, route, device = (MODEL,), Route.GPU, "pattern"

    def cards(self):
        return ()

    def check(self):
        PatternRunner().check()

    def render(self, task) -> Generator[Output, None, None]:
        for output in PatternRunner().render(task):
            self.tap(task, output)
            yield output


class JobView:
    """A client's view of a site that has a `reader` and a `store`."""

    def find(self, job):
        return self.reader.find(job.tenant_id, job.id)

    def read(self, job, part):
        return b"".join(self.store.read(ObjectName(job.tenant_id, job.id, part)))

    def parts(self, job):
        return [stored.name.part for stored in parts_of(self.store, job.tenant_id, job.id)]

    def wait_for(self, job, predicate=lambda job: job.state.is_final):
        """Wait until the predicate holds for the job; returns the job."""

        def find():
            found = self.find(job)
            return found if predicate(found) else None

        return wait_until(find, interval=0.01, describe=lambda: self.find(job))


@dataclass
class LocalSite(JobView):
    """The queue and the store of a worker, and a client's view of the jobs."""

    queue: object
    reader: object
    store: LocalStore
    settings: WorkerSettings = FAST

    def enqueue(self, **spec):
        return self.queue.enqueue(make_ticket(model=MODEL, **spec))

    @contextmanager
    def worker(self, runner, **parts):
        fields = {"queue": self.queue, "store": self.store, "settings": self.settings} | parts
        worker, failures = Worker(WorkerId("worker-1"), runner, **fields), []

        def run():
            try:
                worker.run()
            except DeviceError as exc:
                failures.append(exc)

        thread = threading.Thread(target=run)
        thread.start()
        worker.failures, worker.thread = failures, thread
        try:
            yield worker
        finally:
            worker.drain()
            thread.join(60)
            assert not thread.is_alive()


@contextmanager
def open_site(folder):
    database = Database(f"sqlite:///{folder / 'filmgate.db'}")
    migrate(database)
    keys = DataKeys(FileKeyring(folder / "keys"))
    settings = QueueSettings(lease_seconds=30, backoff_seconds=0.05, poll_seconds=0.02)
    yield LocalSite(
        open_queue(database, keys, settings),
        open_reader(database, keys),
        LocalStore(folder / "objects", keys),
    )
    database.close()


@pytest.fixture
def site(tmp_path):
    with open_site(tmp_path) as site:
        yield site
