"""Sites of real processes that tests kill, pause and cut off from their database and store."""

import os
import signal
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from filmgate.database import open_database
from filmgate.errors import QueueUnavailable
from filmgate.scheduling import open_queue, open_reader
from filmgate.settings import load_settings
from filmgate.store import open_store
from filmgate.store.keys import open_keys
from tests.forks import ForkedProcess, start_process
from tests.local_site import JobView
from tests.pattern_runner import MODEL, pattern_clip
from tests.tickets import make_ticket
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
ALL_VARIABLE = "FILMGATE_TEST_CHAOS"


def pytest_collection_modifyitems(items):
    """`make chaos` runs the whole suite; other runs skip the tests marked `chaos`."""
    if ALL_VARIABLE not in os.environ:
        for item in items:
            if item.get_closest_marker("chaos"):
                item.add_marker(pytest.mark.skip(reason="part of `make chaos`"))


@dataclass
class Site(JobView):
    """One installation: the settings that its processes share, and a client's view of its jobs."""

    environ: dict[str, str]
    log: Path
    workers: list[ForkedProcess] = field(default_factory=list)

    def __post_init__(self):
        settings = load_settings(self.environ)
        self.settings = settings
        self.database = open_database(settings.queue, settings.data)
        keys = open_keys(settings.store, settings.data)
        self.queue = open_queue(self.database, keys, settings.queue)
        self.reader = open_reader(self.database, keys)
        self.store = open_store(settings.store, settings.data, keys)

    def start_worker(self, **options):
        """Start a worker process with the pattern runner; the options are those of its command."""
        arguments = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        return self.start("tests.chaos.pattern_worker", *arguments)

    def start_managed_worker(self):
        """Start a worker for the managed route."""
        return self.start("filmgate", "worker", "--managed")

    def start(self, module, *arguments):
        """Start a process of this site. `close` ends it."""
        where = {"log": self.log, "folder": self.log.parent}
        process = start_process(module, *arguments, environ=self.environ, **where)
        self.workers.append(process)
        return process

    def kill(self, worker):
        worker.send_signal(signal.SIGKILL)
        worker.wait(60)

    def close(self):
        for worker in self.workers:
            if worker.poll() is None:
                worker.send_signal(signal.SIGCONT)
                self.kill(worker)
        self.database.close()

    def enqueue(self, tenant="acme", **spec):
        return self.queue.enqueue(make_ticket(tenant, model=MODEL, **spec))

    def wait_for(self, job, predicate=lambda job: job.state.is_final):
        """Wait until the predicate holds for the job, also through database outages; returns the job."""

        def find():
            try:
                found = self.find(job)
            except QueueUnavailable:
                return None
            return found if predicate(found) else None

        return self.wait_until(find)

    def wait_for_stage(self, job, stage):
        return self.wait_for(job, lambda j: j.progress is not None and j.progress.stage is stage)

    def wait_for_log(self, text, count=1):
        """Wait until the log contains the text at least this often."""
        self.wait_until(lambda: self.log.read_text().count(text) >= count)

    def wait_until(self, predicate):
        return wait_until(predicate, describe=lambda: self.log.read_text()[-3000:])

    def is_whole(self, job, chunk_bytes=4096):
        """True when the stored clip of the job is the clip of its spec."""
        clip = self.find(job).clip
        return self.read(job, clip.part) == pattern_clip(job.spec, chunk_bytes)


@pytest.fixture
def make_site(tmp_path):
    sites = []

    def make(**environ):
        settings = {
            "FILMGATE_DATA": str(tmp_path / "data"),
            "FILMGATE_QUEUE__LEASE_SECONDS": "2",
            "FILMGATE_QUEUE__BACKOFF_SECONDS": "0.1",
            "FILMGATE_WORKER__HEARTBEAT_SECONDS": "0.3",
            "FILMGATE_WORKER__PROGRESS_SECONDS": "0.05",
            "FILMGATE_QUEUE__POLL_SECONDS": "0.05",
            "FILMGATE_STORE__MIN_FREE_BYTES": "0",
        }
        sites.append(Site(settings | environ, tmp_path / "workers.log"))
        return sites[-1]

    yield make
    for site in sites:
        site.close()


@pytest.fixture
def site(make_site):
    return make_site()
