"""Counts of late jobs on both databases, written with the end of each job (S0-5, S0-68)."""

from filmgate.jobs import Failure, Reason, TenantId
from filmgate.scheduling.base import AttemptFailure
from filmgate.settings import Settings
from filmgate.slo.counts import KEEP_SECONDS, delete_old, read_since
from filmgate.slo.report import SloReport
from tests.tickets import RESULT, make_offer, make_ticket

ACME = TenantId("acme")


def run(queue, clocks, seconds, **ticket):
    job = queue.enqueue(make_ticket(**ticket))
    lease = queue.lease(make_offer())
    clocks.pass_time(seconds)
    queue.heartbeat(lease)
    queue.complete(lease, RESULT)
    return job


def test_late_and_failed_jobs_are_late_and_cancelled_ones_do_not_count(bench, queue, clocks):
    run(queue, clocks, 20)
    run(queue, clocks, 25, slo_seconds=10.0)
    queue.enqueue(make_ticket())
    failure = Failure(Reason.INTERNAL, "defect")
    queue.fail_attempt(queue.lease(make_offer()), AttemptFailure(failure, is_retryable=False))
    queue.cancel(ACME, queue.enqueue(make_ticket()).id)
    (found,) = SloReport(bench.database, Settings()).read()
    assert (found.jobs, found.late, found.objective_seconds) == (3, 2, 90.0)


def test_counts_outlive_the_jobs_and_the_totals_their_intervals(bench, queue, reader, clocks):
    job = run(queue, clocks, 10)
    queue.remove(ACME, job.id)
    assert len(read_since(bench.database, 3600)[0]) == 1
    clocks.pass_time(KEEP_SECONDS + 600)
    delete_old(bench.database)
    assert read_since(bench.database, KEEP_SECONDS * 2)[0] == []
    assert [(count.jobs, count.late) for count in reader.statistics().slo] == [(1, 0)]


def test_a_job_knows_its_class(bench, queue, reader, clocks):
    from dataclasses import replace

    job = queue.enqueue(replace(make_ticket(), slo_class="short"))
    assert reader.find(ACME, job.id).slo_class == job.slo_class == "short"
    queue.complete(queue.lease(make_offer()), RESULT)
    assert [one.name for one in SloReport(bench.database, Settings()).read()] == ["short"]
