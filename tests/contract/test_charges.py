"""What jobs cost their tenant, and how many of them run at once."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import pytest

from filmgate.errors import BacklogGrown, QuotaExceeded
from filmgate.jobs import Failure, JobState, Progress, Reason, Share, Stage, new_job_id
from filmgate.scheduling.base import AttemptFailure
from filmgate.scheduling.claims import find_fair, peek_due, peek_fair, take_due
from tests.tickets import RESULT, make_offer, make_ticket


def test_a_cancelled_job_pays_for_the_work_that_was_done(queue, reader):
    job = queue.enqueue(make_ticket())  # text 1, denoise 6, decode 3
    lease = queue.lease(make_offer())
    queue.heartbeat(lease, Progress(Stage.DECODE, 2, 6, 0.8))
    queue.cancel(job.tenant_id, job.id)
    queue.fail_attempt(lease, AttemptFailure(Failure(Reason.CANCELLED, ""), is_retryable=False))
    assert reader.gpu_seconds_today(job.tenant_id) == pytest.approx(8.0)
    ended = reader.statistics().ended
    assert [(count.reason, count.gpu_seconds) for count in ended] == [(Reason.CANCELLED, pytest.approx(8.0))]


def test_a_job_that_is_cancelled_after_its_last_step_pays_what_was_measured(queue, reader):
    job = queue.enqueue(make_ticket())
    lease = queue.lease(make_offer())
    queue.cancel(job.tenant_id, job.id)
    assert queue.complete(lease, RESULT).failure.reason is Reason.CANCELLED
    assert reader.gpu_seconds_today(job.tenant_id) == RESULT.measured.gpu_seconds


def test_a_job_that_never_started_or_failed_costs_nothing(queue, reader):
    job = queue.enqueue(make_ticket())
    queue.cancel(job.tenant_id, job.id)
    queue.enqueue(make_ticket())
    lease = queue.lease(make_offer())
    queue.heartbeat(lease, Progress(Stage.DECODE, 2, 6, 0.8))
    failure = Failure(Reason.MODEL_UNUSABLE, "the model is broken")
    queue.fail_attempt(lease, AttemptFailure(failure, is_retryable=False))
    assert reader.gpu_seconds_today(job.tenant_id) == 0.0


def test_a_job_of_yesterday_returns_nothing_to_the_quota_of_today(queue, reader, clocks):
    yesterday = queue.enqueue(make_ticket(gpu_seconds=50))
    clocks.pass_time(86400)
    queue.enqueue(make_ticket(gpu_seconds=40))
    queue.cancel(yesterday.tenant_id, yesterday.id)
    assert reader.gpu_seconds_today(yesterday.tenant_id) == 40.0


def test_a_rejected_request_changes_nothing(queue, bench):
    queue.enqueue(make_ticket(share=Share(weight=1.0)))
    with pytest.raises(QuotaExceeded):
        queue.enqueue(make_ticket(share=Share(weight=9.0, max_queued=1)))
    with bench.database.read() as connection:
        assert connection.exec_driver_sql("SELECT weight FROM accounts").scalars().all() == [1.0]


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_place_that_was_taken_after_the_check_is_not_given_twice(bench, queue):
    share = Share(max_running=1)
    retried = queue.enqueue(make_ticket(share=share))
    drained = AttemptFailure(Failure(Reason.WORKER_LOST, ""), uses_attempt=False)
    queue.fail_attempt(queue.lease(make_offer()), drained)
    with bench.database.write() as connection:
        steady_now = bench.database.steady_now(connection)
        peeked = peek_due(connection, make_offer(), steady_now)
        assert peeked is not None
        # Meanwhile another worker leases another job of the tenant.
        with bench.database.write() as other:
            other.exec_driver_sql("UPDATE accounts SET running = 1")
        assert take_due(connection, make_offer(), peeked, steady_now) is None
    assert bench.reader.find(retried.tenant_id, retried.id).state is JobState.QUEUED


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_tenant_that_became_full_while_a_worker_waited_for_it_gets_no_more_jobs(bench, queue):
    job = queue.enqueue(make_ticket(share=Share(max_running=1)))
    with bench.database.write() as connection:
        awaited = peek_fair(connection, make_offer())
        assert awaited == job.tenant_id
        with bench.database.write() as other:
            other.exec_driver_sql("UPDATE accounts SET running = 1")
        assert find_fair(connection, make_offer(), awaited) is None


def test_concurrent_tenants_cannot_exceed_the_backlog_that_was_promised(queue, reader):
    barrier = threading.Barrier(12)

    def create(number):
        ticket = make_ticket(f"tenant-{number}", gpu_seconds=10)
        barrier.wait(30)
        for _ in range(4):
            with suppress(BacklogGrown):
                queue.enqueue(replace(ticket, max_backlog_seconds=45.0, job_id=new_job_id()))

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(create, range(12)))
    assert sum(count.gpu_seconds for count in reader.backlog().counts) == 50
