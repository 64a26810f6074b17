"""What SQS may do to the queue: lose, double, delay. What it may not: change which job runs, or how often.

Sweeps are off unless a test asks for one, so that a job can only be found through its message.
"""

import time
from contextlib import contextmanager
from dataclasses import replace

import pytest
import sqlalchemy as sa

from filmgate.database.engine import Database
from filmgate.database.migration import migrate
from filmgate.errors import QueueUnavailable
from filmgate.jobs import Failure, Idempotency, JobState, Reason, Route, Share, TenantId
from filmgate.scheduling import open_queue, open_reader
from filmgate.scheduling.base import AttemptFailure
from filmgate.scheduling.wakers.sqs_queues import SqsQueue, Wakeup
from filmgate.server import redelivering
from filmgate.settings import QueueSettings
from filmgate.store.keys.cache import DataKeys
from filmgate.store.keys.files import FileKeyring
from tests.sqs_pair import SqsPair
from tests.tickets import RESULT, make_offer, make_ticket
from tests.waiting import wait_until

ACME = TenantId("acme")
CRASH = AttemptFailure(Failure(Reason.OUT_OF_MEMORY, "no rung of the ladder held"))
DRAIN = AttemptFailure(Failure(Reason.WORKER_LOST, "the worker is shutting down"), counts=False)


@pytest.fixture
def database(tmp_path):
    database = Database(f"sqlite:///{tmp_path / 'filmgate.db'}")
    migrate(database)
    yield database
    database.close()


@pytest.fixture
def open_(database, tmp_path, sqs):
    """A queue as another process would open it; its first, curious look is behind it."""

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
    """Every statement the block sends to the database."""
    seen = []

    def note(_connection, _cursor, statement, *_rest):
        seen.append(statement)

    sa.event.listen(database.engine, "before_cursor_execute", note)
    yield seen
    sa.event.remove(database.engine, "before_cursor_execute", note)


def test_an_idle_worker_asks_sqs_and_not_the_database(queue, database):
    with statements(database) as asked:
        assert [queue.lease(make_offer()) for _ in range(5)] == [None] * 5
    assert asked == []


def test_an_accepted_job_sends_one_message_and_its_retry_none(queue, sqs, monkeypatch):
    ticket = make_ticket(idempotency=Idempotency("digest", key="k"))
    queue.enqueue(ticket)
    assert sqs.count() == 1
    monkeypatch.setattr(SqsQueue, "send", None)
    queue.enqueue(replace(make_ticket(), idempotency=ticket.idempotency))


def test_a_message_carries_no_word_of_the_request_and_no_tenant(queue, sqs):
    queue.enqueue(make_ticket("acme"))
    (message,) = sqs.take()
    assert "acme" not in message["Body"]
    assert set(Wakeup.__slots__) == {"job_id", "route", "model", "fence"}


def test_many_jobs_of_one_tenant_run_at_once(queue, sqs):
    ids = {queue.enqueue(make_ticket()).id for _ in range(5)}
    assert {queue.lease(make_offer(f"worker-{n}")).job.id for n in range(5)} == ids
    assert (sqs.count(), sqs.count_held()) == (0, 5)


def test_the_lease_is_fair_whatever_the_order_of_messages(queue):
    for _ in range(10):
        queue.enqueue(make_ticket("crowd"))
    queue.enqueue(make_ticket("newcomer"))
    assert "newcomer" in {queue.lease(make_offer()).job.tenant_id for _ in range(2)}


def test_a_message_lives_until_its_job_has_ended(queue, sqs):
    queue.enqueue(make_ticket())
    lease = queue.lease(make_offer())
    assert sqs.count_held() == 1
    queue.complete(lease, RESULT)
    assert (sqs.count(), sqs.count_held()) == (0, 0)


def test_a_doubled_message_wakes_a_worker_for_nothing_and_is_gone(queue, sqs, reader):
    job = queue.enqueue(make_ticket())
    (message,) = sqs.take()
    lease = queue.lease(make_offer())
    sqs.send(message["Body"])
    assert queue.lease(make_offer("worker-2")) is None
    assert (sqs.count(), sqs.count_held()) == (0, 1)
    assert queue.complete(lease, RESULT).state is JobState.COMPLETED
    assert reader.find(ACME, job.id).attempt == 1


def test_a_message_that_comes_after_the_end_changes_nothing(queue, sqs, reader):
    job = queue.enqueue(make_ticket())
    (message,) = sqs.take()
    queue.complete(queue.lease(make_offer()), RESULT)
    before = reader.find(ACME, job.id)
    sqs.send(message["Body"])
    assert queue.lease(make_offer("worker-2")) is None
    assert reader.find(ACME, job.id) == before
    assert sqs.count() == 0


def test_a_cancelled_jobs_message_finds_nothing(queue, sqs):
    queue.cancel(ACME, queue.enqueue(make_ticket()).id)
    assert queue.lease(make_offer()) is None
    assert (sqs.count(), sqs.count_held()) == (0, 0)


def test_a_lost_send_costs_time_and_not_the_job(open_, queue, sqs):
    deaf = open_(endpoint="http://127.0.0.1:9")
    job = deaf.enqueue(make_ticket())
    assert job.state is JobState.QUEUED
    assert queue.lease(make_offer()) is None
    queue.sweep()
    assert queue.lease(make_offer()).job.id == job.id


def test_an_outage_of_sqs_slows_one_request_and_not_the_next(open_):
    deaf = open_(endpoint="http://127.0.0.1:9")
    deaf.enqueue(make_ticket())
    asked = []
    deaf._post.box = lambda *lane: asked.append(lane)
    deaf.enqueue(make_ticket())
    assert asked == []


def test_without_sqs_workers_ask_the_database_as_before(open_):
    deaf = open_(endpoint="http://127.0.0.1:9")
    job = deaf.enqueue(make_ticket())
    lease = deaf.lease(make_offer())
    assert lease.job.id == job.id
    assert not deaf.heartbeat(lease).is_cancelling
    assert deaf.complete(lease, RESULT).state is JobState.COMPLETED


def test_the_server_sends_lost_messages_again_when_no_worker_is_left(open_, queue, sqs):
    open_(endpoint="http://127.0.0.1:9").enqueue(make_ticket())
    with redelivering(queue, 0.2):
        wait_until(lambda: sqs.count() > 0)
    assert queue.lease(make_offer()) is not None


def test_sweeps_at_once_send_what_is_missing_once(open_, sqs):
    queues = [open_() for _ in range(3)]
    for _ in range(4):
        queues[0].enqueue(make_ticket())
    sqs.purge()
    for queue in queues:
        queue.sweep()
    assert sqs.count() == 4
    queues[0].sweep()
    assert sqs.count() == 4


def test_a_job_can_be_woken_while_its_first_message_is_held_for_another(queue, sqs):
    waits = queue.enqueue(make_ticket(slo_seconds=900))
    urgent = queue.enqueue(make_ticket(slo_seconds=60))
    assert queue.lease(make_offer()).job.id == urgent.id, "woken by the message of the other"
    (lost,) = sqs.client.receive_message(QueueUrl=sqs.url)["Messages"]
    sqs.client.delete_message(QueueUrl=sqs.url, ReceiptHandle=lost["ReceiptHandle"])
    queue.sweep()
    assert queue.lease(make_offer("worker-2")).job.id == waits.id


def test_a_sweep_sends_nothing_for_work_nobody_may_start(queue, sqs):
    for _ in range(3):
        queue.enqueue(make_ticket(share=Share(max_running=1)))
    lease = queue.lease(make_offer())
    sqs.purge()
    queue.sweep()
    assert sqs.count() == 0
    queue.complete(lease, RESULT)
    queue.sweep()
    assert sqs.count() == 1


def test_whoever_ends_a_job_takes_its_tenants_next_without_a_message(queue, sqs):
    for _ in range(2):
        queue.enqueue(make_ticket(share=Share(max_running=1)))
    lease = queue.lease(make_offer())
    assert queue.lease(make_offer("worker-2")) is None
    assert sqs.count() == 0, "the second message found no room and is gone"
    queue.complete(lease, RESULT)
    assert queue.lease(make_offer()) is not None


def test_heartbeats_keep_the_message_hidden_and_silence_shows_it_again(open_, sqs):
    queue = open_(lease_seconds=3)  # long, so that a pause of the machine does not end the visibility timeout
    job = queue.enqueue(make_ticket())
    lease = queue.lease(make_offer())
    ends = time.monotonic() + 6  # longer than one visibility timeout
    while time.monotonic() < ends:
        queue.heartbeat(lease)
        assert sqs.count() == 0
        time.sleep(0.1)
    again = wait_until(lambda: queue.lease(make_offer("worker-2")))
    assert (again.job.id, again.fence) == (job.id, 2)


def test_an_idle_worker_waits_for_a_message_and_a_busy_one_is_not_kept(open_):
    queue = open_(wait_seconds=1)
    started = time.monotonic()
    assert queue.lease(make_offer()) is None
    assert time.monotonic() - started >= 1
    queue.enqueue(make_ticket())
    lease = queue.lease(make_offer())
    asked = []
    queue._receive = lambda offer, wait_seconds: asked.append(wait_seconds)
    queue.lease(make_offer())
    queue.complete(lease, RESULT)
    queue.lease(make_offer())
    queue.lease(make_offer())
    assert asked == [0, 0, 1], "busy, curious, idle"


def test_a_setback_hides_the_message_for_the_backoff(open_, sqs):
    queue = open_(backoff_seconds=1)
    job = queue.enqueue(make_ticket())
    failed_at = time.monotonic()
    queue.fail_attempt(queue.lease(make_offer()), CRASH)
    queue.lease(make_offer())
    again = wait_until(lambda: queue.lease(make_offer()))
    assert again.job.id == job.id
    assert time.monotonic() - failed_at >= 1


def test_a_job_that_is_handed_back_has_a_new_message_at_once(queue, sqs):
    queue.enqueue(make_ticket())
    for _ in range(8):
        assert queue.fail_attempt(queue.lease(make_offer()), DRAIN).state is JobState.QUEUED
        (message,) = sqs.take(MessageSystemAttributeNames=["ApproximateReceiveCount"])
        assert message["Attributes"]["ApproximateReceiveCount"] == "1"


def test_a_message_nobody_survives_fails_its_job_with_a_reason(queue, sqs, reader):
    job = queue.enqueue(make_ticket())
    for _ in range(6):
        sqs.take()
    assert sqs.count(url=sqs.dead_url) == 1
    queue.sweep()
    failure = reader.find(ACME, job.id).failure
    assert (failure.reason, sqs.count(url=sqs.dead_url)) == (Reason.WORKER_LOST, 0)
    assert "no worker finished it" in failure.message
    assert queue.lease(make_offer()) is None


def test_a_dead_letter_does_not_end_a_job_in_good_hands(queue, sqs, reader):
    running, done = queue.enqueue(make_ticket()), queue.enqueue(make_ticket())
    lease, other = queue.lease(make_offer()), queue.lease(make_offer())
    queue.complete(other, RESULT)
    for job in (running, done):
        sqs.client.send_message(
            QueueUrl=sqs.dead_url,
            MessageBody=Wakeup(job.id, Route.GPU, "flipbook").to_body(),
            MessageGroupId=job.id,
            MessageDeduplicationId=job.id,
        )
    queue.sweep()
    assert sqs.count(url=sqs.dead_url) == 0
    assert reader.find(ACME, other.job.id).state is JobState.COMPLETED
    assert queue.complete(lease, RESULT).state is JobState.COMPLETED


def test_a_message_that_comes_again_asks_for_its_own_job_first(queue, sqs):
    queue.enqueue(make_ticket(slo_seconds=60))
    named = queue.enqueue(make_ticket(slo_seconds=900))
    messages = sqs.client.receive_message(QueueUrl=sqs.url, MaxNumberOfMessages=10)["Messages"]
    for message in messages:
        if Wakeup.from_body(message["Body"]).job_id == named.id:
            sqs.client.change_message_visibility(
                QueueUrl=sqs.url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0
            )
    assert queue.lease(make_offer()).job.id == named.id


def test_a_message_that_meets_a_dead_database_is_not_held_against_its_job(queue, sqs, monkeypatch):
    job = queue.enqueue(make_ticket())

    @contextmanager
    def refuse(**_options):
        raise QueueUnavailable("the job database cannot be used")
        yield

    for _ in range(8):
        with monkeypatch.context() as patch, pytest.raises(QueueUnavailable):
            patch.setattr(queue._database, "write", refuse)
            queue.lease(make_offer())
    assert sqs.count(url=sqs.dead_url) == 0
    assert queue.lease(make_offer()).job.id == job.id


def test_a_message_nobody_of_us_wrote_is_removed(queue, sqs):
    for body in ("hello", "{}", '{"job": "x", "route": "gpu", "model": "m", "fence": 0}', "[1]"):
        sqs.send(body)
        assert queue.lease(make_offer()) is None
    assert (sqs.count(), sqs.count_held()) == (0, 0)


def test_each_model_can_have_a_queue_of_its_own(aws_url, open_, sqs):
    stem = sqs.name.removesuffix(".fifo")
    lanes = {model: SqsPair(aws_url, name=f"{stem}-gpu-{model}") for model in ("flipbook", "wan2-1")}
    queue = open_(delivery=f"sqs://{stem}-{{route}}-{{model}}.fifo")
    wan = queue.enqueue(make_ticket(model="wan2.1"))
    assert (lanes["flipbook"].count(), lanes["wan2-1"].count()) == (0, 1)
    assert queue.lease(make_offer()) is None
    assert queue.lease(make_offer(models=("flipbook", "wan2.1"))).job.id == wan.id


def test_a_message_for_other_workers_is_passed_on_and_not_worn_out(queue, sqs):
    queue.enqueue(make_ticket(model="wan"))
    for _ in range(8):
        assert queue.lease(make_offer()) is None
    assert (sqs.count(), sqs.count(url=sqs.dead_url)) == (1, 0)
    assert queue.lease(make_offer(models=("wan",))) is not None
