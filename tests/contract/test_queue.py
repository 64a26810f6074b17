"""The contract of every JobQueue: a job is accepted once, leased by fence and ended once."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import sqlalchemy as sa

from filmgate.database.schema import jobs
from filmgate.errors import IdempotencyConflict, JobActive, JobNotFound, LeaseLost, QuotaExceeded
from filmgate.jobs import (
    Failure,
    Idempotency,
    JobId,
    JobState,
    Progress,
    Reason,
    Route,
    Share,
    Source,
    SourceKind,
    Stage,
    TenantId,
)
from filmgate.scheduling.base import AttemptFailure
from tests.tickets import PROMPT, RESULT, make_offer, make_ticket

# SQLite has no LISTEN.
pytestmark = pytest.mark.parametrize(
    ("database_url", "waker"),
    [
        ("sqlite", "poll"),
        ("sqlite", "sqs"),
        ("postgresql", "poll"),
        ("postgresql", "notify"),
        ("postgresql", "sqs"),
    ],
    indirect=True,
)
ACME, GLOBEX = TenantId("acme"), TenantId("globex")
CRASH = AttemptFailure(Failure(Reason.OUT_OF_MEMORY, "out of GPU memory"))
FATAL = AttemptFailure(Failure(Reason.MODEL_UNUSABLE, "the model is broken"), is_retryable=False)
DRAIN = AttemptFailure(Failure(Reason.WORKER_LOST, "the worker is shutting down"), uses_attempt=False)


def test_a_worker_leases_the_spec_that_was_enqueued(queue, reader):
    source = Source(SourceKind.REMIX, job_id=JobId("video_" + "0" * 32))
    ticket = make_ticket(negative_prompt="blur", guidance=4.5, source=source)
    job = queue.enqueue(ticket)
    assert (job.spec, job.state, job.attempt) == (ticket.spec, JobState.QUEUED, 0)
    assert reader.find(ACME, job.id) == job
    lease = queue.lease(make_offer())
    assert lease.job.spec == ticket.spec
    assert (lease.job.state, lease.fence, lease.job.attempt) == (JobState.RUNNING, 1, 1)
    assert queue.lease(make_offer("worker-2")) is None


def test_a_job_that_only_a_newer_version_can_read_does_not_stop_a_worker(bench, queue, clocks):
    newer, other = queue.enqueue(make_ticket(slo_seconds=60)), queue.enqueue(make_ticket(slo_seconds=900))
    spec = sa.func.replace(jobs.c.spec, '"source": null', '"source": {"kind": "hologram"}')
    with bench.database.write() as connection:
        connection.execute(sa.update(jobs).where(jobs.c.id == newer.id).values(spec=spec))
    assert queue.lease(make_offer()).job.id == other.id
    for _ in range(bench.settings.max_attempts):
        clocks.pass_time(bench.settings.lease_seconds + 1)
        queue.lease(make_offer())
    with bench.database.read() as connection:
        ended = connection.execute(sa.select(jobs.c.failure).where(jobs.c.id == newer.id)).scalar_one()
    assert Reason.WORKER_LOST in ended


def test_a_worker_leases_only_jobs_of_its_models_and_route(queue):
    queue.enqueue(make_ticket(model="wan"))
    queue.enqueue(replace(make_ticket(), route=Route.MANAGED))
    assert queue.lease(make_offer()) is None
    assert queue.lease(make_offer(models=("flipbook", "wan"))).job.spec.model == "wan"
    assert queue.lease(make_offer(route=Route.MANAGED)).job.route is Route.MANAGED


def test_the_earliest_deadline_of_a_tenant_goes_first_across_models(queue):
    late = queue.enqueue(make_ticket(slo_seconds=900))
    soon = queue.enqueue(make_ticket(slo_seconds=60, model="wan"))
    offer = make_offer(models=("flipbook", "wan"))
    assert [queue.lease(offer).job.id for _ in range(2)] == [soon.id, late.id]


def test_concurrent_workers_never_lease_the_same_job(queue):
    ids = {queue.enqueue(make_ticket(f"tenant-{n % 3}")).id for n in range(24)}
    taken: list[str] = []

    def drain(name):
        misses = 0
        while misses < 5:
            lease = queue.lease(make_offer(name))
            misses = misses + 1 if lease is None else 0
            if lease is not None:
                taken.append(lease.job.id)

    threads = [threading.Thread(target=drain, args=(f"worker-{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(taken) == sorted(ids)


def test_a_heartbeat_renews_the_lease_and_reports_progress(queue, reader, clocks):
    job = queue.enqueue(make_ticket())
    lease = queue.lease(make_offer())
    clocks.pass_time(29)
    assert not queue.heartbeat(lease, Progress(Stage.DENOISE, 3, 8, 0.4)).is_cancelling
    clocks.pass_time(29)
    assert queue.lease(make_offer("worker-2")) is None
    seen = reader.find(ACME, job.id)
    assert seen.progress == Progress(Stage.DENOISE, 3, 8, 0.4)
    assert seen.revision == lease.job.revision + 1


def test_a_job_starts_with_its_first_progress_not_with_its_lease(queue, reader, clocks):
    """A worker leases the next job while it still decodes the one before."""
    job = queue.enqueue(make_ticket())
    lease = queue.lease(make_offer())
    clocks.pass_time(5)
    queue.heartbeat(lease)
    assert reader.find(ACME, job.id).started_at == lease.job.started_at
    for done in (0, 1):
        clocks.pass_time(5)
        queue.heartbeat(lease, Progress(Stage.DENOISE, done, 8, 0.0))
        assert reader.find(ACME, job.id).started_at == pytest.approx(lease.job.started_at + 10, abs=1)


def test_an_expired_lease_can_be_leased_again_and_the_late_worker_is_refused(queue, reader, clocks):
    job = queue.enqueue(make_ticket())
    stale = queue.lease(make_offer())
    clocks.pass_time(31)
    fresh = queue.lease(make_offer("worker-2"))
    assert (fresh.job.id, fresh.fence, fresh.job.attempt) == (job.id, 2, 2)
    for late_write in (
        lambda: queue.heartbeat(stale),
        lambda: queue.complete(stale, RESULT),
        lambda: queue.fail_attempt(stale, CRASH),
    ):
        before = reader.find(ACME, job.id)
        with pytest.raises(LeaseLost):
            late_write()
        assert reader.find(ACME, job.id) == before
    assert queue.complete(fresh, RESULT).state is JobState.COMPLETED


def test_complete_is_idempotent(queue):
    queue.enqueue(make_ticket())
    lease = queue.lease(make_offer())
    job = queue.complete(lease, RESULT)
    assert (job.state, job.clip, job.measured) == (JobState.COMPLETED, RESULT.clip, RESULT.measured)
    assert queue.complete(lease, RESULT) == job
    other = replace(RESULT, clip=replace(RESULT.clip, part="clip-9.mp4"))
    with pytest.raises(LeaseLost):
        queue.complete(lease, other)
    with pytest.raises(LeaseLost):
        queue.fail_attempt(lease, CRASH)


def test_each_failed_attempt_doubles_the_delay_and_the_third_fails_the_job(queue, clocks):
    queue.enqueue(make_ticket())
    for delay in (2.0, 4.0):
        assert queue.fail_attempt(queue.lease(make_offer()), CRASH).state is JobState.QUEUED
        clocks.pass_time(delay - 0.1)
        assert queue.lease(make_offer()) is None
        clocks.pass_time(0.2)
    job = queue.fail_attempt(queue.lease(make_offer()), CRASH)
    assert (job.state, job.failure) == (JobState.FAILED, CRASH.failure)
    clocks.pass_time(3600)
    assert queue.lease(make_offer()) is None


def test_a_failure_that_cannot_be_retried_fails_the_job_at_once(queue):
    queue.enqueue(make_ticket())
    assert queue.fail_attempt(queue.lease(make_offer()), FATAL).failure == FATAL.failure


def test_a_drained_job_can_be_leased_at_once_and_uses_no_attempt(queue):
    queue.enqueue(make_ticket())
    assert queue.fail_attempt(queue.lease(make_offer()), DRAIN).attempt == 0
    lease = queue.lease(make_offer("worker-2"))
    assert (lease.job.attempt, lease.fence) == (1, 2)


def test_a_pause_from_before_the_clock_stepped_back_is_over_for_leases_and_forecast(queue, reader, clocks):
    """The steady clock starts again when the host does, or follows a server whose clock was corrected."""
    queue.enqueue(make_ticket())
    queue.fail_attempt(queue.lease(make_offer()), CRASH)
    (paused,) = reader.snapshot().queued
    assert paused.ready_in == 2.0
    clocks.steady -= 5000.0
    (job,) = reader.snapshot().queued
    assert job.ready_in == 0.0
    assert queue.lease(make_offer()).job.id == job.job_id


def test_a_job_whose_workers_all_die_fails_as_worker_lost(queue, reader, clocks):
    job = queue.enqueue(make_ticket())
    for _ in range(3):
        assert queue.lease(make_offer()).job.id == job.id
        clocks.pass_time(31)
    assert queue.lease(make_offer()) is None
    assert reader.find(ACME, job.id).failure.reason is Reason.WORKER_LOST


def test_cancelling_a_queued_job_ends_it(queue, reader):
    job = queue.enqueue(make_ticket())
    assert queue.cancel(ACME, job.id).failure.reason is Reason.CANCELLED
    assert queue.cancel(ACME, job.id) == reader.find(ACME, job.id)
    assert queue.lease(make_offer()) is None


def test_the_heartbeat_of_a_cancelled_job_says_so(queue):
    job = queue.enqueue(make_ticket())
    lease = queue.lease(make_offer())
    assert queue.cancel(ACME, job.id).state is JobState.RUNNING
    assert queue.heartbeat(lease).is_cancelling
    assert queue.fail_attempt(lease, CRASH).failure.reason is Reason.CANCELLED


def test_a_clip_that_finishes_while_being_cancelled_is_cancelled(queue):
    job = queue.enqueue(make_ticket())
    lease = queue.lease(make_offer())
    queue.cancel(ACME, job.id)
    ended = queue.complete(lease, RESULT)
    assert (ended.state, ended.failure.reason, ended.clip) == (JobState.FAILED, Reason.CANCELLED, None)


def test_a_cancelled_job_whose_worker_died_is_not_run_again(queue, reader, clocks):
    job = queue.enqueue(make_ticket())
    queue.lease(make_offer())
    queue.cancel(ACME, job.id)
    clocks.pass_time(31)
    assert queue.lease(make_offer()) is None
    assert reader.find(ACME, job.id).failure.reason is Reason.CANCELLED


@pytest.mark.parametrize("is_cancelled_before", [False, True])
def test_cancelling_a_job_whose_worker_died_ends_it_without_another_worker(
    queue, reader, clocks, is_cancelled_before
):
    job = queue.enqueue(make_ticket())
    lease = queue.lease(make_offer())
    if is_cancelled_before:
        queue.cancel(ACME, job.id)
    clocks.pass_time(31)
    assert queue.cancel(ACME, job.id).failure.reason is Reason.CANCELLED
    assert queue.cancel(ACME, job.id) == reader.find(ACME, job.id)
    with pytest.raises(LeaseLost):
        queue.complete(lease, RESULT)


def test_only_a_final_job_can_be_removed(queue, reader):
    job = queue.enqueue(make_ticket())
    with pytest.raises(JobActive):
        queue.remove(ACME, job.id)
    queue.cancel(ACME, job.id)
    queue.remove(GLOBEX, job.id)
    assert reader.find(ACME, job.id)
    queue.remove(ACME, job.id)
    queue.remove(ACME, job.id)
    with pytest.raises(JobNotFound):
        reader.find(ACME, job.id)


def test_the_lease_of_a_removed_job_is_lost(queue, clocks):
    job = queue.enqueue(make_ticket())
    lease = queue.lease(make_offer())
    queue.cancel(ACME, job.id)
    clocks.pass_time(31)
    queue.lease(make_offer("worker-2"))
    queue.remove(ACME, job.id)
    for late_write in (
        lambda: queue.heartbeat(lease),
        lambda: queue.complete(lease, RESULT),
        lambda: queue.fail_attempt(lease, CRASH),
    ):
        with pytest.raises(LeaseLost):
            late_write()


def test_the_same_key_returns_the_same_job_and_another_body_is_refused(queue, reader):
    first = queue.enqueue(make_ticket(idempotency=Idempotency("digest-1", key="k")))
    assert queue.enqueue(make_ticket(idempotency=Idempotency("digest-1", key="k"))).id == first.id
    with pytest.raises(IdempotencyConflict):
        queue.enqueue(make_ticket(idempotency=Idempotency("digest-2", key="k")))
    assert queue.enqueue(make_ticket("globex", idempotency=Idempotency("digest-1", key="k"))).id != first.id
    assert reader.backlog().queued_jobs == 2


def test_concurrent_calls_with_the_same_key_create_one_job(queue, reader):
    barrier = threading.Barrier(8)

    def enqueue(_):
        barrier.wait(60)
        return queue.enqueue(make_ticket(idempotency=Idempotency("digest", key="k"))).id

    with ThreadPoolExecutor(8) as threads:
        ids = list(threads.map(enqueue, range(8)))
    assert (len(ids), len(set(ids)), reader.backlog().queued_jobs) == (8, 1, 1)


def test_a_retry_of_the_same_body_returns_the_same_job_within_the_window(queue, clocks):
    first = queue.enqueue(make_ticket(idempotency=Idempotency("digest")))
    assert queue.enqueue(make_ticket(idempotency=Idempotency("digest", is_retry=True))).id == first.id
    again = queue.enqueue(make_ticket(idempotency=Idempotency("digest")))
    assert again.id != first.id
    clocks.pass_time(901)
    assert queue.enqueue(make_ticket(idempotency=Idempotency("digest", is_retry=True))).id != again.id


def test_an_original_that_arrives_after_its_retry_returns_the_same_job_once(queue):
    retry = queue.enqueue(make_ticket(idempotency=Idempotency("digest", is_retry=True)))
    assert queue.enqueue(make_ticket(idempotency=Idempotency("digest"))).id == retry.id
    assert queue.enqueue(make_ticket(idempotency=Idempotency("digest"))).id != retry.id


def test_quotas_refuse_the_next_job_with_a_retry_time(queue, clocks):
    share = Share(max_queued=2, max_gpu_seconds_per_day=100.0)
    queue.enqueue(make_ticket(gpu_seconds=60, share=share))
    with pytest.raises(QuotaExceeded) as error:
        queue.enqueue(make_ticket(gpu_seconds=60, share=share))
    assert (error.value.quota, error.value.retry_after_seconds) == ("max_gpu_seconds_per_day", 43200.0)
    queue.enqueue(make_ticket(gpu_seconds=1, share=share))
    with pytest.raises(QuotaExceeded) as error:
        queue.enqueue(make_ticket(gpu_seconds=1, share=share))
    assert error.value.quota == "max_queued"
    clocks.pass_time(43201)
    queue.lease(make_offer())
    queue.enqueue(make_ticket(gpu_seconds=99, share=share))


def test_usage_counts_measured_seconds_and_nothing_for_a_failure(queue, reader):
    queue.enqueue(make_ticket(gpu_seconds=60))
    assert reader.gpu_seconds_today(ACME) == 60
    queue.complete(queue.lease(make_offer()), RESULT)
    assert reader.gpu_seconds_today(ACME) == RESULT.measured.gpu_seconds
    queue.cancel(ACME, queue.enqueue(make_ticket(gpu_seconds=60)).id)
    assert reader.gpu_seconds_today(ACME) == RESULT.measured.gpu_seconds


def test_max_running_also_limits_retries(queue, clocks):
    for _ in range(3):
        queue.enqueue(make_ticket(share=Share(max_running=1)))
    first = queue.lease(make_offer())
    assert queue.lease(make_offer()) is None
    queue.fail_attempt(first, CRASH)
    second = queue.lease(make_offer())
    assert second.job.id != first.job.id
    clocks.pass_time(5)
    queue.heartbeat(second)
    assert queue.lease(make_offer()) is None
    queue.complete(second, RESULT)
    assert queue.lease(make_offer()).job.id == first.job.id


def test_a_step_of_the_wall_clock_does_not_change_a_lease(queue, clocks):
    queue.enqueue(make_ticket())
    queue.lease(make_offer())
    clocks.step(+7200)
    assert queue.lease(make_offer("worker-2")) is None
    clocks.step(-14400)
    clocks.pass_time(31)
    assert queue.lease(make_offer("worker-2")).fence == 2


def test_leases_from_before_a_reboot_have_expired(queue, clocks):
    queue.enqueue(make_ticket())
    queue.lease(make_offer())
    clocks.steady = 5.0
    assert queue.lease(make_offer("worker-2")).fence == 2


def test_prompts_are_encrypted_in_the_database(bench, queue, tmp_path):
    queue.enqueue(make_ticket())
    with bench.database.read() as connection:
        stored = connection.exec_driver_sql("SELECT * FROM jobs").all()
    assert PROMPT not in repr(stored)
    assert PROMPT.encode() not in b"".join(f.read_bytes() for f in tmp_path.rglob("*") if f.is_file())
