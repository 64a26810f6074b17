"""The records of provider jobs, on each database."""

from dataclasses import replace

import pytest

from filmgate.errors import LeaseLost
from filmgate.jobs import (
    Clip,
    Failure,
    InvocationId,
    JobState,
    Reason,
    Route,
    RouteReason,
    Routing,
    StageSeconds,
)
from filmgate.providers.invocations import _ORPHANS, RecordState, SqlInvocations
from filmgate.scheduling.base import AttemptFailure, AttemptResult
from tests.tickets import make_offer, make_ticket

WHY = Routing(
    RouteReason.DEADLINE, provider="http", provider_model="wan", changes=("size 1x1 -> 2x2",), usd=0.5
)
FIRST = InvocationId("first")
RESULT = AttemptResult(Clip("clip-1.mp4", 1, "ab" * 32), StageSeconds(upload=1.0))


@pytest.fixture
def records(bench):
    return SqlInvocations(bench.database)


@pytest.fixture
def lease(queue):
    queue.enqueue(replace(make_ticket(), route=Route.MANAGED))
    return queue.lease(make_offer(route=Route.MANAGED))


def test_the_intent_is_recorded_before_the_start(records, lease, bench):
    record = records.begin(lease, "http", WHY)
    assert (record.provider, record.state) == ("http", RecordState.OPEN)
    assert (record.invocation_id, record.age_seconds) == (None, 0.0)
    assert records.find(lease.job.id) == record


def test_the_changes_of_the_provider_are_written_to_the_job(records, lease, reader):
    records.begin(lease, "http", WHY)
    assert reader.find(lease.job.tenant_id, lease.job.id).routing == WHY


def test_the_next_worker_finds_the_record_of_the_first(records, lease, queue, bench):
    records.begin(lease, "http", WHY)
    records.set_invocation(lease.job.id, FIRST)
    bench.clocks.pass_time(31)
    again = queue.lease(make_offer("worker-2", route=Route.MANAGED))
    record = records.begin(again, "http", replace(WHY, usd=9.0))
    assert (record.invocation_id, record.age_seconds) == (FIRST, 31.0)


def test_only_the_holder_of_the_lease_may_begin(records, lease, queue, bench):
    bench.clocks.pass_time(31)
    queue.lease(make_offer("worker-2", route=Route.MANAGED))
    with pytest.raises(LeaseLost):
        records.begin(lease, "http", WHY)
    assert records.find(lease.job.id) is None


def test_only_the_holder_of_the_lease_may_withdraw_or_fail(records, lease, queue, bench):
    records.begin(lease, "http", WHY)
    bench.clocks.pass_time(31)
    queue.lease(make_offer("worker-2", route=Route.MANAGED))
    for verb in (records.withdraw, records.fail):
        with pytest.raises(LeaseLost):
            verb(lease)
    assert records.find(lease.job.id).state is RecordState.OPEN


def test_an_intent_changes_to_the_configured_provider_but_a_started_job_does_not(records, lease, reader):
    records.begin(lease, "http", WHY)
    again = records.begin(lease, "bedrock", replace(WHY, provider="bedrock"))
    assert (again.provider, again.invocation_id) == ("bedrock", None)
    assert reader.find(lease.job.tenant_id, lease.job.id).routing.provider == "bedrock"
    records.set_invocation(lease.job.id, FIRST)
    assert records.begin(lease, "http", WHY).provider == "bedrock", "a started job keeps its provider"
    assert reader.find(lease.job.tenant_id, lease.job.id).routing.provider == "bedrock"


def test_the_first_invocation_id_is_kept(records, lease):
    records.begin(lease, "http", WHY)
    records.set_invocation(lease.job.id, FIRST)
    records.set_invocation(lease.job.id, InvocationId("second"))
    assert records.find(lease.job.id).invocation_id == FIRST


def test_an_intent_can_be_withdrawn_but_a_started_job_cannot(records, lease):
    records.begin(lease, "http", WHY)
    records.withdraw(lease)
    assert records.find(lease.job.id) is None
    records.begin(lease, "http", WHY)
    records.set_invocation(lease.job.id, FIRST)
    records.withdraw(lease)
    assert records.find(lease.job.id).invocation_id == FIRST


def test_a_job_returns_to_our_gpus_only_after_it_failed_at_the_provider(records, lease, queue):
    returned = Routing(RouteReason.RETURNED, "the provider failed the job")
    failed = AttemptFailure(Failure(Reason.PROVIDER_FAILED, "no"), uses_attempt=False, routing=returned)
    records.begin(lease, "http", WHY)
    records.set_invocation(lease.job.id, FIRST)
    assert queue.fail_attempt(lease, failed).route is Route.MANAGED
    again = queue.lease(make_offer(route=Route.MANAGED))
    records.fail(again)
    assert queue.fail_attempt(again, failed).route is Route.GPU


def test_orphans_are_ended_jobs_whose_provider_may_still_hold_data(records, lease, queue, bench):
    records.begin(lease, "http", WHY)
    records.set_invocation(lease.job.id, FIRST)
    bench.clocks.pass_time(10)
    assert records.orphans("http", idle_seconds=5) == [], "the job is still running"
    queue.complete(lease, RESULT)
    assert records.orphans("http", idle_seconds=20) == [], "its worker may be deleting the data"
    assert records.orphans("bedrock", idle_seconds=5) == [], "another provider's job"
    assert [record.job_id for record in records.orphans("http", idle_seconds=5)] == [lease.job.id]
    records.set_state(lease.job.id, RecordState.CLOSED)
    bench.clocks.pass_time(60)
    assert records.orphans("http", idle_seconds=5) == []


def test_the_search_for_orphans_does_not_read_closed_records(bench):
    query = _ORPHANS.limit(50).params(the_provider="http", before=1.0)
    statement = query.compile(bench.database.engine, compile_kwargs={"literal_binds": True})
    with bench.database.read() as connection:
        if not bench.database.is_sqlite:
            connection.exec_driver_sql("SET LOCAL enable_seqscan = off")  # the tables of this test are empty
        explain = "EXPLAIN QUERY PLAN" if bench.database.is_sqlite else "EXPLAIN"
        plan = connection.exec_driver_sql(f"{explain} {statement}").all()
    assert "ix_invocations_open" in str(plan)


def test_a_record_is_deleted_with_its_job(records, lease, queue):
    records.begin(lease, "http", WHY)
    queue.complete(lease, RESULT)
    queue.remove(lease.job.tenant_id, lease.job.id)
    assert records.find(lease.job.id) is None
    records.set_state(lease.job.id, RecordState.CLOSED)
    records.set_invocation(lease.job.id, FIRST)
    assert records.find(lease.job.id) is None


def test_a_record_changes_only_the_routing_of_the_job(records, lease, reader):
    before = reader.find(lease.job.tenant_id, lease.job.id)
    records.begin(lease, "http", WHY)
    records.set_invocation(lease.job.id, FIRST)
    after = reader.find(lease.job.tenant_id, lease.job.id)
    assert after == replace(before, routing=WHY)
    assert after.state is JobState.RUNNING


def test_a_removed_job_leaves_its_invocation_for_the_sweep(records, lease, queue, bench):
    job = lease.job
    records.begin(lease, "http", WHY)
    records.set_invocation(job.id, FIRST)
    queue.cancel(job.tenant_id, job.id)
    failure = Failure(Reason.CANCELLED, "the video was cancelled")
    queue.fail_attempt(lease, AttemptFailure(failure, is_retryable=False))
    queue.remove(job.tenant_id, job.id)
    bench.clocks.pass_time(31)
    assert records.orphans("other", idle_seconds=30) == []
    (orphan,) = records.orphans("http", idle_seconds=30)
    assert (orphan.job_id, orphan.invocation_id, orphan.is_removed) == (job.id, FIRST, True)
    records.postpone(orphan)
    assert records.orphans("http", idle_seconds=30) == []
    bench.clocks.pass_time(31)
    records.close(orphan)
    assert records.orphans("http", idle_seconds=30) == []


def test_a_removed_job_whose_copy_was_deleted_leaves_nothing(records, lease, queue, bench):
    records.begin(lease, "http", WHY)
    records.set_invocation(lease.job.id, FIRST)
    queue.complete(lease, RESULT)
    records.set_state(lease.job.id, RecordState.CLOSED)
    queue.remove(lease.job.tenant_id, lease.job.id)
    bench.clocks.pass_time(31)
    assert records.orphans("http", idle_seconds=30) == []
