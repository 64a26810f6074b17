"""If a tenant's key cannot be used, only the jobs of that tenant wait."""

from dataclasses import replace

import pytest

from filmgate.database.engine import Database
from filmgate.jobs import JobState, Reason, TenantId
from filmgate.scheduling import open_queue, open_reader
from filmgate.store.keys.data_keys import DataKeys
from filmgate.store.keys.files import FileKeyring
from tests.tickets import RESULT, make_offer, make_ticket

ACME, GLOBEX = TenantId("acme"), TenantId("globex")


@pytest.fixture
def key_file(tmp_path):
    return tmp_path / "keys" / "acme.key"


def restart(bench, keyring, **settings):
    """The queue of a process that has no data keys in memory."""
    return open_queue(bench.database, DataKeys(keyring), bench.settings.model_copy(update=settings))


def test_an_unreadable_key_delays_its_tenant_and_nobody_else(bench, key_file):
    waiting = [bench.queue.enqueue(make_ticket(slo_seconds=1)) for _ in range(3)]
    others = {bench.queue.enqueue(make_ticket("globex")).id for _ in range(3)}
    key_file.chmod(0o644)  # the keyring refuses to use it
    worker = restart(bench, FileKeyring(key_file.parent))

    assert {worker.lease(make_offer()).job.id for _ in others} == others
    assert worker.lease(make_offer()) is None
    unharmed = [bench.reader.find(ACME, job.id) for job in waiting]
    assert [(job.state, job.attempt) for job in unharmed] == [(JobState.QUEUED, 0)] * 3

    key_file.chmod(0o600)
    bench.clocks.pass_time(11)
    leases = [worker.lease(make_offer()) for _ in waiting]
    assert {lease.job.id for lease in leases} == {job.id for job in waiting}
    assert {(lease.job.attempt, lease.job.spec.prompt) for lease in leases} == {(1, waiting[0].spec.prompt)}


def test_a_tenant_that_stays_unusable_is_tried_less_and_less_often(bench, key_file):
    job = bench.queue.enqueue(make_ticket())
    key_file.chmod(0o644)
    worker = restart(bench, FileKeyring(key_file.parent))
    for _ in range(100):
        assert worker.lease(make_offer()) is None
        bench.clocks.pass_time(1)
    assert bench.reader.events(ACME, job.id)[-1].revision < 14
    assert bench.reader.backlog().counts[0].jobs == 1


def test_a_tenant_is_not_skipped_for_longer_after_the_clock_stepped_back(bench, key_file):
    """The steady clock of PostgreSQL is the server's: a correction or a failover may set it back."""
    job = bench.queue.enqueue(make_ticket())
    key_file.chmod(0o644)
    worker = restart(bench, FileKeyring(key_file.parent))
    assert worker.lease(make_offer()) is None
    key_file.chmod(0o600)
    bench.clocks.steady -= 5000.0
    assert worker.lease(make_offer()).job.id == job.id


def test_a_deleted_key_fails_its_jobs_after_the_configured_time(bench, key_file):
    lost = bench.queue.enqueue(make_ticket(slo_seconds=1))
    DataKeys(FileKeyring(key_file.parent)).forget(ACME)
    other = bench.queue.enqueue(make_ticket("globex"))
    worker = restart(bench, FileKeyring(key_file.parent), key_wait_seconds=600)
    reader = open_reader(bench.database, DataKeys(FileKeyring(key_file.parent)))
    assert worker.lease(make_offer()).job.id == other.id
    assert reader.find(ACME, lost.id).state is JobState.QUEUED
    bench.clocks.pass_time(601)
    assert worker.lease(make_offer("worker-2")).job.id == other.id  # its lease has expired
    assert worker.lease(make_offer("worker-3")) is None
    found = reader.find(ACME, lost.id)
    assert (found.failure.reason, found.spec.prompt) == (Reason.KEY_REFUSED, "")
    assert reader.gpu_seconds_today(ACME) == 0.0


def test_a_job_is_cancelled_and_completed_without_its_key(bench, key_file):
    bench.queue.enqueue(make_ticket())
    lease = bench.queue.lease(make_offer())
    waiting = bench.queue.enqueue(make_ticket())
    other = restart(bench, FileKeyring(key_file.parent))
    key_file.chmod(0o644)
    assert other.complete(lease, RESULT).state is JobState.COMPLETED
    assert other.cancel(ACME, waiting.id).failure.reason is Reason.CANCELLED


class WritingKeyring(FileKeyring):
    """A keyring whose every call writes to the database from another connection."""

    def __init__(self, folder, url):
        super().__init__(folder)
        self._database = Database(url, timeout_seconds=0.2)
        self.calls = 0

    def open_data_key(self, tenant_id, wrapped):
        with self._database.write() as connection:
            connection.exec_driver_sql("UPDATE accounts SET weight = weight")
        self.calls += 1
        return super().open_data_key(tenant_id, wrapped)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_the_keyring_is_never_called_in_a_write_transaction(bench, database_url, key_file):
    keyring = WritingKeyring(key_file.parent, database_url)
    ticket = make_ticket()
    bench.queue.enqueue(ticket)
    repeated = replace(ticket.idempotency, is_retry=True)
    lease = restart(bench, keyring).lease(make_offer())
    running = bench.queue.enqueue(make_ticket())
    assert restart(bench, keyring).enqueue(replace(ticket, idempotency=repeated)).id == ticket.job_id
    assert restart(bench, keyring).complete(lease, RESULT).state is JobState.COMPLETED
    assert restart(bench, keyring).cancel(ACME, running.id).state is JobState.FAILED
    assert keyring.calls >= 3
    keyring._database.close()
