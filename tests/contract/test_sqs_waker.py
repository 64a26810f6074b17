"""Lost, duplicated and late SQS messages change when a job starts, never which job runs or how often.

Sweeps are off unless a test runs one, so a job can only be found through its message.
"""

import json
import time
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from types import SimpleNamespace

import pytest
import sqlalchemy as sa

from filmgate.errors import QueueUnavailable
from filmgate.jobs import Failure, Idempotency, JobState, Reason, Route, Share, TenantId
from filmgate.scheduling import open_queue, open_reader
from filmgate.scheduling.base import AttemptFailure
from filmgate.scheduling.claims import ReadyJob
from filmgate.scheduling.wakers import sqs as sqs_waker
from filmgate.scheduling.wakers.sqs_queues import SqsQueue, from_body, to_body
from filmgate.settings import QueueSettings
from filmgate.store.keys.data_keys import DataKeys
from filmgate.store.keys.files import FileKeyring
from filmgate.telemetry.periodic import Periodic
from filmgate.tenants.base import Tenant
from filmgate.tenants.registry import TenantRegistry
from tests.sqs_pair import SqsPair
from tests.tickets import RESULT, make_offer, make_ticket
from tests.waiting import wait_until

ACME = TenantId("acme")
CRASH = AttemptFailure(Failure(Reason.OUT_OF_MEMORY, "out of GPU memory"))
DRAIN = AttemptFailure(Failure(Reason.WORKER_LOST, "the worker is shutting down"), uses_attempt=False)
OUTAGE = replace(DRAIN, retry_seconds=0.01)


@pytest.fixture
def open_(database, tmp_path, sqs):
    """Opens the queue as another process would, after its first look at the database."""

    def open_one(**given):
        quiet = {"wait_seconds": 0, "sweep_seconds": 600, "lease_seconds": 30, "backoff_seconds": 0}
        settings = QueueSettings(**sqs.settings | quiet | given)
        queue = open_queue(database, DataKeys(FileKeyring(tmp_path / "keys")), settings)
        queue.lease(make_offer(models=("no such model",)))
        return queue

    return open_one


@pytest.fixture
def queue(open_, sqs):
    return open_()


@pytest.fixture
def reader(database, tmp_path):
    return open_reader(database, DataKeys(FileKeyring(tmp_path / "keys")))


@contextmanager
def statements(database):
    """The statements that the block sends to the database."""
    seen = []

    def note(_connection, _cursor, statement, *_rest):
        seen.append(statement)

    sa.event.listen(database.engine, "before_cursor_execute", note)
    yield seen
    sa.event.remove(database.engine, "before_cursor_execute", note)


def test_an_idle_worker_sends_no_query(queue, database):
    with statements(database) as sent:
        assert [queue.lease(make_offer()) for _ in range(5)] == [None] * 5
    assert sent == []


def test_an_accepted_job_sends_one_message_and_its_retry_none(queue, sqs, monkeypatch):
    ticket = make_ticket(idempotency=Idempotency("digest", key="k"))
    queue.enqueue(ticket)
    assert sqs.count() == 1
    monkeypatch.setattr(SqsQueue, "send", None)
    queue.enqueue(replace(make_ticket(), idempotency=ticket.idempotency))


def test_a_message_contains_neither_prompt_nor_tenant(queue, sqs):
    queue.enqueue(make_ticket("acme"))
    (message,) = sqs.take()
    assert "acme" not in message["Body"]
    assert json.loads(message["Body"]).keys() == {"job", "route", "model", "fence"}


def test_many_jobs_of_one_tenant_run_at_once(queue, sqs):
    ids = {queue.enqueue(make_ticket()).id for _ in range(5)}
    assert {queue.lease(make_offer(f"worker-{n}")).job.id for n in range(5)} == ids
    assert (sqs.count(), sqs.count_held()) == (0, 5)


def test_leases_are_fair_in_any_order_of_messages(queue):
    for _ in range(10):
        queue.enqueue(make_ticket("crowd"))
    queue.enqueue(make_ticket("newcomer"))
    assert "newcomer" in {queue.lease(make_offer()).job.tenant_id for _ in range(2)}


def test_a_message_is_deleted_when_its_job_ends(queue, sqs):
    queue.enqueue(make_ticket())
    lease = queue.lease(make_offer())
    assert sqs.count_held() == 1
    queue.complete(lease, RESULT)
    assert (sqs.count(), sqs.count_held()) == (0, 0)


def test_a_duplicated_message_leads_to_no_lease_and_is_deleted(queue, sqs, reader):
    job = queue.enqueue(make_ticket())
    (message,) = sqs.take()
    lease = queue.lease(make_offer())
    sqs.send(message["Body"])
    assert queue.lease(make_offer("worker-2")) is None
    assert (sqs.count(), sqs.count_held()) == (0, 1)
    assert queue.complete(lease, RESULT).state is JobState.COMPLETED
    assert reader.find(ACME, job.id).attempt == 1


def test_a_message_that_arrives_after_the_end_changes_nothing(queue, sqs, reader):
    job = queue.enqueue(make_ticket())
    (message,) = sqs.take()
    queue.complete(queue.lease(make_offer()), RESULT)
    before = reader.find(ACME, job.id)
    sqs.send(message["Body"])
    assert queue.lease(make_offer("worker-2")) is None
    assert reader.find(ACME, job.id) == before
    assert sqs.count() == 0


def test_the_message_of_a_cancelled_job_leads_to_no_lease(queue, sqs):
    queue.cancel(ACME, queue.enqueue(make_ticket()).id)
    assert queue.lease(make_offer()) is None
    assert (sqs.count(), sqs.count_held()) == (0, 0)


def test_the_sweep_sends_a_lost_message_again(open_, queue, sqs):
    unreachable = open_(endpoint="http://127.0.0.1:9")
    job = unreachable.enqueue(make_ticket())
    assert job.state is JobState.QUEUED
    assert queue.lease(make_offer()) is None
    with Periodic("wake-up sweep", queue.sweep, 0.2):  # as in the server
        wait_until(lambda: sqs.count() > 0)
    assert queue.lease(make_offer()).job.id == job.id


def test_during_an_sqs_outage_only_one_request_tries_to_send(open_):
    unreachable = open_(endpoint="http://127.0.0.1:9")
    unreachable.enqueue(make_ticket())
    calls = []
    unreachable._waker._queues.find = lambda *lane: calls.append(lane)
    unreachable.enqueue(make_ticket())
    assert calls == []


def test_workers_poll_the_database_while_sqs_is_down(open_):
    unreachable = open_(endpoint="http://127.0.0.1:9")
    job = unreachable.enqueue(make_ticket())
    lease = unreachable.lease(make_offer())
    assert lease.job.id == job.id
    assert not unreachable.heartbeat(lease).is_cancelling
    assert unreachable.complete(lease, RESULT).state is JobState.COMPLETED


def test_concurrent_sweeps_send_a_missing_message_once(open_, sqs):
    queues = [open_() for _ in range(3)]
    for _ in range(4):
        queues[0].enqueue(make_ticket())
    sqs.purge()
    for queue in queues:
        queue.sweep()
    assert sqs.count() == 4
    queues[0].sweep()
    assert sqs.count() == 4


def test_a_job_gets_a_second_message_while_another_job_holds_its_first(queue, sqs):
    waits = queue.enqueue(make_ticket(slo_seconds=900))
    urgent = queue.enqueue(make_ticket(slo_seconds=60))
    assert queue.lease(make_offer()).job.id == urgent.id, "woken by the message of the other job"
    (lost,) = sqs.client.receive_message(QueueUrl=sqs.url)["Messages"]
    sqs.client.delete_message(QueueUrl=sqs.url, ReceiptHandle=lost["ReceiptHandle"])
    queue.sweep()
    assert queue.lease(make_offer("worker-2")).job.id == waits.id


def test_a_sweep_sends_no_message_for_a_job_beyond_max_running(queue, sqs):
    for _ in range(3):
        queue.enqueue(make_ticket(share=Share(max_running=1)))
    lease = queue.lease(make_offer())
    sqs.purge()
    queue.sweep()
    assert sqs.count() == 0
    queue.complete(lease, RESULT)
    queue.sweep()
    assert sqs.count() == 1


def test_after_a_job_the_worker_looks_once_without_a_message(queue, sqs):
    for _ in range(2):
        queue.enqueue(make_ticket(share=Share(max_running=1)))
    lease = queue.lease(make_offer())
    assert queue.lease(make_offer("worker-2")) is None
    assert sqs.count() == 0, "the second message led to no lease and was deleted"
    queue.complete(lease, RESULT)
    assert queue.lease(make_offer()) is not None


def test_heartbeats_extend_the_visibility_three_times_per_lease(open_, monkeypatch):
    queue, hidden, passed = open_(lease_seconds=60), [], 0.0
    monkeypatch.setattr(SqsQueue, "hide", lambda _queue, _message, seconds: hidden.append(seconds))
    monkeypatch.setattr(sqs_waker, "time", SimpleNamespace(monotonic=lambda: 1e6 + passed))
    queue.enqueue(make_ticket())
    lease = queue.lease(make_offer())
    for passed in range(0, 70, 5):  # noqa: B007 - the clock reads it
        queue.heartbeat(lease)
    assert len(hidden) == 3
    assert min(hidden) > 60 + 20, "the message stays invisible until the next extension, and for one lease"


def test_a_message_is_visible_again_when_heartbeats_have_stopped(open_):
    queue = open_(lease_seconds=1)
    job = queue.enqueue(make_ticket())
    assert queue.lease(make_offer()).fence == 1
    again = wait_until(lambda: queue.lease(make_offer("worker-2")))
    assert (again.job.id, again.fence) == (job.id, 2)


def test_an_idle_worker_waits_for_a_message_and_a_busy_one_does_not(open_, monkeypatch):
    queue, waits = open_(wait_seconds=7), []
    receive = SqsQueue.receive

    def watched(sqs, *, wait_seconds, visibility_seconds):
        waits.append(wait_seconds)
        return receive(sqs, wait_seconds=0, visibility_seconds=visibility_seconds)

    monkeypatch.setattr(SqsQueue, "receive", watched)
    queue.wait(make_offer(), lambda: False)
    assert queue.lease(make_offer()) is None
    queue.enqueue(make_ticket())
    lease = queue.lease(make_offer())
    queue.complete(lease, RESULT)
    queue.wait(make_offer(), lambda: False)
    assert queue.lease(make_offer()) is None, "a job that ended may allow the next one: look at once"
    queue.wait(make_offer(), lambda: False)
    assert waits == [7, 0, 0, 7]


def test_a_stopping_worker_does_not_wait(open_, monkeypatch):
    queue, received = open_(wait_seconds=7), []
    monkeypatch.setattr(SqsQueue, "receive", lambda *arguments: received.append(arguments))
    queue.wait(make_offer(), lambda: True)
    assert received == []


def test_a_failed_attempt_hides_the_message_for_the_backoff(open_, sqs):
    queue = open_(backoff_seconds=1)
    job = queue.enqueue(make_ticket())
    failed_at = time.monotonic()
    queue.fail_attempt(queue.lease(make_offer()), CRASH)
    queue.lease(make_offer())
    again = wait_until(lambda: queue.lease(make_offer()))
    assert again.job.id == job.id
    assert time.monotonic() - failed_at >= 1


def test_a_drained_job_gets_a_new_message_at_once(queue, sqs):
    queue.enqueue(make_ticket())
    for _ in range(8):
        assert queue.fail_attempt(queue.lease(make_offer()), DRAIN).state is JobState.QUEUED
        (message,) = sqs.take(MessageSystemAttributeNames=["ApproximateReceiveCount"])
        assert message["Attributes"]["ApproximateReceiveCount"] == "1"


def test_an_outage_of_the_store_uses_up_no_receives(open_, sqs, reader):
    """A job that is handed back with a pause is not at fault; the sweep finds it when the pause is over."""
    queue = open_()
    job = queue.enqueue(make_ticket())
    for _ in range(8):
        lease = wait_until(lambda: queue.sweep() or queue.lease(make_offer()))
        assert queue.fail_attempt(lease, OUTAGE).state is JobState.QUEUED
        assert (sqs.count(), sqs.count_held()) == (0, 0)
    queue.sweep()
    assert (sqs.count(url=sqs.dead_url), reader.find(ACME, job.id).state) == (0, JobState.QUEUED)


def test_a_dead_letter_fails_its_job_with_a_reason(queue, sqs, reader):
    job = queue.enqueue(make_ticket())
    for _ in range(6):
        sqs.take()
    assert sqs.count(url=sqs.dead_url) == 1
    queue.sweep()
    failure = reader.find(ACME, job.id).failure
    assert (failure.reason, sqs.count(url=sqs.dead_url)) == (Reason.WORKER_LOST, 0)
    assert "no worker finished it" in failure.message
    assert queue.lease(make_offer()) is None


def test_a_dead_letter_does_not_fail_a_running_or_completed_job(queue, sqs, reader):
    running, done = queue.enqueue(make_ticket()), queue.enqueue(make_ticket())
    lease, other = queue.lease(make_offer()), queue.lease(make_offer())
    queue.complete(other, RESULT)
    for job in (running, done):
        sqs.client.send_message(
            QueueUrl=sqs.dead_url,
            MessageBody=to_body(ReadyJob(job.id, Route.GPU, "flipbook")),
            MessageGroupId=job.id,
            MessageDeduplicationId=job.id,
        )
    queue.sweep()
    assert sqs.count(url=sqs.dead_url) == 0
    assert reader.find(ACME, other.job.id).state is JobState.COMPLETED
    assert queue.complete(lease, RESULT).state is JobState.COMPLETED


def test_a_repeated_message_leases_the_job_it_names(queue, sqs):
    queue.enqueue(make_ticket(slo_seconds=60))
    named = queue.enqueue(make_ticket(slo_seconds=900))
    messages = sqs.client.receive_message(QueueUrl=sqs.url, MaxNumberOfMessages=10)["Messages"]
    for message in messages:
        if from_body(message["Body"]).job_id == named.id:
            sqs.client.change_message_visibility(
                QueueUrl=sqs.url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0
            )
    assert queue.lease(make_offer()).job.id == named.id


def test_a_database_outage_uses_up_no_receives(queue, sqs, monkeypatch):
    job = queue.enqueue(make_ticket())

    @contextmanager
    def fail(**_options):
        raise QueueUnavailable("the job database cannot be used")
        yield

    for _ in range(8):
        with monkeypatch.context() as patch, pytest.raises(QueueUnavailable):
            patch.setattr(queue._database, "write", fail)
            queue.lease(make_offer())
    assert sqs.count(url=sqs.dead_url) == 0
    assert queue.lease(make_offer()).job.id == job.id


def test_messages_of_other_programs_are_deleted(queue, sqs):
    for body in ("hello", "{}", '{"job": "x", "route": "gpu", "model": "m", "fence": 0}', "[1]"):
        sqs.send(body)
        assert queue.lease(make_offer()) is None
    assert (sqs.count(), sqs.count_held()) == (0, 0)


def test_each_model_can_have_its_own_queue(aws_url, open_, sqs):
    stem = sqs.name.removesuffix(".fifo")
    lanes = {model: SqsPair(aws_url, name=f"{stem}-gpu-{model}") for model in ("flipbook", "wan2-1")}
    queue = open_(waker=f"sqs://{stem}-{{route}}-{{model}}.fifo")
    wan = queue.enqueue(make_ticket(model="wan2.1"))
    assert (lanes["flipbook"].count(), lanes["wan2-1"].count()) == (0, 1)
    assert queue.lease(make_offer()) is None
    assert queue.lease(make_offer(models=("flipbook", "wan2.1"))).job.id == wan.id


def test_a_missing_queue_does_not_stop_the_sweep_of_the_others(aws_url, open_, sqs):
    stem = sqs.name.removesuffix(".fifo")
    found = {model: SqsPair(aws_url, name=f"{stem}-{model}") for model in ("flipbook", "wan")}
    queue = open_(waker=f"sqs://{stem}-{{model}}.fifo")
    queue._waker._sends_from = inf
    for model in ("a-missing-one", "flipbook", "missing", "wan"):
        queue.enqueue(make_ticket(model=model))
    queue.sweep()
    assert [pair.count() for pair in found.values()] == [1, 1]


def test_a_sweep_sends_no_message_for_jobs_of_dedicated_tenants(database, queue, sqs):
    """Shared workers would receive and delete it, and the next sweep would send it again."""
    TenantRegistry(database).add(Tenant(ACME, is_dedicated=True))
    queue.enqueue(make_ticket(ACME))
    queue.enqueue(make_ticket(ACME))
    queue.fail_attempt(queue.lease(make_offer(tenants=(ACME,))), CRASH)  # a retry that is due
    managed = queue.enqueue(replace(make_ticket(ACME), route=Route.MANAGED))
    sqs.purge()
    queue.sweep()
    assert [json.loads(message["Body"])["job"] for message in sqs.take(MaxNumberOfMessages=10)] == [
        managed.id
    ]


def test_a_message_for_other_workers_is_sent_again_without_receives(queue, sqs):
    queue.enqueue(make_ticket(model="wan"))
    for _ in range(8):
        assert queue.lease(make_offer()) is None
    assert (sqs.count(), sqs.count(url=sqs.dead_url)) == (1, 0)
    assert queue.lease(make_offer(models=("wan",))) is not None
