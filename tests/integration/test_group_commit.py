"""Group commit: many callers share few transactions; a call returns after its own change is on disk."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa

from filmgate.database.group_commit import GroupCommit
from filmgate.database.schema import jobs
from filmgate.errors import QuotaExceeded
from filmgate.jobs import Idempotency, Share
from filmgate.scheduling import open_queue
from filmgate.settings import QueueSettings
from filmgate.store.keys.data_keys import DataKeys
from filmgate.store.keys.files import FileKeyring
from tests.tickets import make_ticket
from tests.waiting import wait_until


@pytest.fixture
def queue(database, tmp_path):
    return open_queue(database, DataKeys(FileKeyring(tmp_path / "keys")), QueueSettings())


def count_queued(database):
    with database.read() as connection:
        return connection.scalar(sa.select(sa.func.count()).select_from(jobs))


def test_callers_that_wait_together_share_a_transaction(database, queue):
    commits, entered, left = [], [], []
    queue.enqueue(make_ticket())  # creates the tenant's account and the key of its digests

    @sa.event.listens_for(database.engine, "commit")
    def commit_when_all_threads_wait(_connection):
        commits.append(1)
        wait_until(lambda: len(entered) - len(left) == min(16, 64 - len(left)), interval=0.001)

    def enqueue(_):
        entered.append(1)
        try:
            return queue.enqueue(make_ticket())
        finally:
            left.append(1)

    with ThreadPoolExecutor(16) as pool:
        jobs = list(pool.map(enqueue, range(64)))
    assert len({job.id for job in jobs}) == 64
    assert count_queued(database) == 65
    assert len(commits) < 40


def test_a_rejected_job_does_not_affect_the_others(database, queue):
    share = Share(max_queued=1)
    tickets = [make_ticket("small", share=share) for _ in range(8)] + [make_ticket("big") for _ in range(8)]

    def enqueue(ticket):
        try:
            return queue.enqueue(ticket)
        except QuotaExceeded as exc:
            return exc

    with ThreadPoolExecutor(16) as pool:
        ended = list(pool.map(enqueue, tickets))
    refused = [outcome for outcome in ended if isinstance(outcome, QuotaExceeded)]
    assert len(refused) == 7
    assert count_queued(database) == 9


def test_the_same_key_in_one_group_is_one_job(queue):
    same = Idempotency("digest", key="k")
    with ThreadPoolExecutor(16) as pool:
        jobs = list(pool.map(lambda _: queue.enqueue(make_ticket(idempotency=same)), range(16)))
    assert len({job.id for job in jobs}) == 1


def test_an_error_of_one_caller_fails_that_caller_alone(database):
    group, start = GroupCommit(database), threading.Barrier(4)
    insert = (
        "INSERT INTO tenants (id, share, scopes, is_enabled, created_at, screening) "
        "VALUES (?, '{}', '[]', 1, 0, '{}')"
    )

    def work(name):
        def run(connection):
            connection.exec_driver_sql(insert, (name,))
            if name == "bad":
                connection.exec_driver_sql(insert, (name,))

        start.wait()
        try:
            group.run(run)
        except sa.exc.IntegrityError:
            return "failed"
        return "done"

    with ThreadPoolExecutor(4) as pool:
        names = ["a", "b", "c", "bad"]
        outcomes = dict(zip(names, pool.map(work, names), strict=True))
    with database.read() as connection:
        kept = {row[0] for row in connection.exec_driver_sql("SELECT id FROM tenants")}
    assert outcomes["bad"] == "failed"
    assert "bad" not in kept
    assert kept == {name for name, outcome in outcomes.items() if outcome == "done"} == {"a", "b", "c"}
