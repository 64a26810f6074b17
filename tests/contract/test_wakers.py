"""Every waker wakes an idle worker when a job is enqueued, and returns when the worker must stop."""

import threading
from math import inf
from types import SimpleNamespace

import pytest

from filmgate.errors import QueueUnavailable, SettingsError
from filmgate.jobs import Failure, Reason
from filmgate.scheduling import open_queue
from filmgate.scheduling.base import AttemptFailure
from filmgate.settings import QueueSettings
from filmgate.store.keys.data_keys import DataKeys
from filmgate.store.keys.files import FileKeyring
from tests.tickets import make_offer, make_ticket
from tests.waiting import wait_until

DRAIN = AttemptFailure(Failure(Reason.WORKER_LOST, "the worker is shutting down"), uses_attempt=False)


class IdleWorker:
    """Waits and leases in a thread, as a worker does."""

    def __init__(self, queue):
        self.queue, self.is_stopping, self.waits = queue, threading.Event(), 0
        self.leases = []
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self):
        while not self.is_stopping.is_set():
            if (lease := self.queue.lease(make_offer())) is not None:
                self.leases.append(lease)
                continue
            self.waits += 1
            self.queue.wait(make_offer(), self.is_stopping.is_set)

    def stop(self):
        self.is_stopping.set()
        self.thread.join(60)
        assert not self.thread.is_alive()
        self.queue.close()


@pytest.fixture
def settings(request):
    """Settings with which only the waker can wake a worker: no sweep, and no time limit where it is told."""
    if request.param == "poll":
        return {"poll_seconds": 0.05}
    if request.param == "notify":
        return {"waker": "notify"}
    return request.getfixturevalue("sqs").settings | {"wait_seconds": 1, "sweep_seconds": 600}


@pytest.fixture
def open_one(bench, settings, tmp_path):
    """Opens the queue as another process would."""

    def open_(**changed):
        keys = DataKeys(FileKeyring(tmp_path / "keys"))
        return open_queue(bench.database, keys, QueueSettings(**settings | changed))

    return open_


@pytest.fixture
def worker(open_one, settings, bench):
    queue = open_one()
    if settings.get("waker") == "notify" or (bench.database.is_sqlite and "waker" not in settings):
        queue._waker._poll_seconds = inf
    worker = IdleWorker(queue)
    yield worker
    worker.stop()


# SQLite has no LISTEN; SQS does not depend on the database.
each_waker = pytest.mark.parametrize(
    ("database_url", "settings"),
    [("sqlite", "poll"), ("sqlite", "sqs"), ("postgresql", "poll"), ("postgresql", "notify")],
    indirect=True,
)


@each_waker
def test_an_enqueued_job_wakes_a_waiting_worker(open_one, worker):
    api = open_one()
    wait_until(lambda: worker.waits >= 1)
    jobs = [api.enqueue(make_ticket()).id]
    wait_until(lambda: len(worker.leases) == 1, interval=0.01)
    jobs.append(api.enqueue(make_ticket()).id)
    wait_until(lambda: len(worker.leases) == 2, interval=0.01)
    assert [lease.job.id for lease in worker.leases] == jobs


@each_waker
def test_a_drained_job_wakes_a_waiting_worker(open_one, worker):
    other = open_one()
    wait_until(lambda: worker.waits >= 1)
    job = other.enqueue(make_ticket())
    wait_until(lambda: len(worker.leases) == 1, interval=0.01)
    worker.queue.fail_attempt(worker.leases[0], DRAIN)
    wait_until(lambda: len(worker.leases) == 2, interval=0.01)
    assert (worker.leases[1].job.id, worker.leases[1].fence) == (job.id, 2)


@each_waker
def test_a_waiting_worker_that_must_stop_returns(worker):
    wait_until(lambda: worker.waits >= 2)
    worker.stop()
    assert not worker.thread.is_alive()


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_notify_needs_postgresql(bench, tmp_path):
    keys = DataKeys(FileKeyring(tmp_path / "keys"))
    with pytest.raises(SettingsError, match="needs PostgreSQL") as error:
        open_queue(bench.database, keys, QueueSettings(waker="notify"))
    assert error.value.option == "queue.waker"


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_worker_listens_again_after_its_connection_was_cut(bench, database_url, tmp_path):
    keys = DataKeys(FileKeyring(tmp_path / "keys"))
    options = QueueSettings(waker="notify", wait_seconds=1)
    worker = IdleWorker(open_queue(bench.database, keys, options))
    try:
        wait_until(lambda: worker.waits >= 2)
        with bench.database.write() as connection:
            cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query LIKE 'LISTEN%%'"
            assert connection.exec_driver_sql(cut).scalar_one() == 1
        job = open_queue(bench.database, keys, options).enqueue(make_ticket())
        wait_until(lambda: [lease.job.id for lease in worker.leases] == [job.id])
        listeners = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%%'"

        def is_listening():
            with bench.database.read() as connection:
                return connection.exec_driver_sql(listeners).scalar_one() == 1

        wait_until(is_listening)
    finally:
        worker.stop()


@each_waker
def test_a_worker_pauses_when_it_may_not_lease_or_the_database_is_down(open_one, monkeypatch):
    """Some wakers keep their wake-ups for later, so they would not wait."""
    queue, pauses = open_one(), []
    monkeypatch.setattr("filmgate.scheduling.queue.time", SimpleNamespace(sleep=pauses.append))
    job, waited = queue.enqueue(make_ticket()), [queue._settings.poll_seconds]

    def refuse():
        raise QueueUnavailable("the job database cannot be used")

    with monkeypatch.context() as patch:
        patch.setattr(queue, "_may_lease", refuse)
        with pytest.raises(QueueUnavailable):
            queue.lease(make_offer())
        queue.wait(make_offer(), lambda: False)
        assert pauses == waited
        patch.setattr(queue, "_may_lease", lambda: False)
        assert queue.lease(make_offer()) is None
        queue.wait(make_offer(), lambda: False)
        queue.wait(make_offer(), lambda: True)
        assert pauses == waited * 2
    assert queue.lease(make_offer()).job.id == job.id
    queue.wait(make_offer(), lambda: False)
    assert pauses == waited * 2
    queue.close()
