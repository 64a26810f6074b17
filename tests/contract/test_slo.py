"""Counts of late jobs on both databases, written with the end of each job."""

from dataclasses import replace

import pytest

from filmgate.jobs import Failure, Reason, TenantId
from filmgate.scheduling.base import AttemptFailure
from filmgate.settings import Settings
from filmgate.slo.counts import KEEP_SECONDS, delete_old, read_since
from filmgate.slo.report import SloReport
from filmgate.tenants.base import PartialObjective, Tenant
from filmgate.tenants.registry import TenantRegistry
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


def test_a_job_keeps_its_class_and_target_and_is_counted_with_them(bench, queue, reader, clocks):
    """Also when the settings have changed since."""
    ticket = replace(make_ticket(slo_seconds=10.0), slo_class="short", slo_target=0.8)
    job = queue.enqueue(ticket)
    found = reader.find(ACME, job.id)
    assert (found.slo_class, found.slo_target) == (job.slo_class, job.slo_target) == ("short", 0.8)
    clocks.pass_time(20)
    queue.complete(queue.lease(make_offer()), RESULT)
    run(queue, clocks, 5)
    default, short = SloReport(bench.database, Settings()).read()
    assert (default.name, default.target, default.budget_left) == ("default", 0.95, 1.0)
    assert (short.name, short.target, short.late) == ("short", 0.8, 1)
    assert short.burn_rates["5m"] == pytest.approx(5)
    totals = {count.name: count.allowed for count in reader.statistics().slo}
    assert totals == {"default": pytest.approx(0.05), "short": pytest.approx(0.2)}


def test_the_report_by_tenant_has_the_objective_of_the_tenant(bench, queue, clocks):
    TenantRegistry(bench.database).add(Tenant(ACME, objective=PartialObjective(20.0, 0.99)))
    run(queue, clocks, 5)
    report = SloReport(bench.database, Settings())
    assert [one.objective_seconds for one in report.read(is_by_tenant=True)] == [20.0]
    assert [one.objective_seconds for one in report.read()] == [90.0]
