"""The provider's side of a job, on each database."""

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
from filmgate.providers.invocations import RecordState, SqlInvocations
from filmgate.scheduling.base import AttemptFailure, AttemptResult
from tests.tickets import make_offer, make_ticket

WHY = Routing(RouteReason.DEADLINE, provider="http", offer="wan", changes=("size 1x1 -> 2x2",), usd=0.5)
MINE = InvocationId("theirs-1")
RESULT = AttemptResult(Clip("clip-1.mp4", 1, "ab" * 32), StageSeconds(upload=1.0))


@pytest.fixture
def records(bench):
    return SqlInvocations(bench.database)


@pytest.fixture
def lease(queue):
    queue.enqueue(replace(make_ticket(), route=Route.MANAGED))
    return queue.lease(make_offer(route=Route.MANAGED))


def test_an_intent_is_on_record_before_anything_is_started(records, lease, bench):
    record = records.begin(lease, "http", WHY)
    assert (record.provider, record.token, record.state) == ("http", lease.job.id, RecordState.OPEN)
    assert (record.invocation_id, record.started_at) == (None, bench.clocks.wall)
    assert records.find(lease.job.id) == record


def test_what_the_provider_will_change_is_written_on_the_job(records, lease, reader):
    records.begin(lease, "http", WHY)
    assert reader.find(lease.job.tenant_id, lease.job.id).routing == WHY


def test_the_next_worker_finds_the_first_ones_record(records, lease, queue, bench):
    records.begin(lease, "http", WHY)
    records.note(lease.job.id, MINE)
    bench.clocks.pass_time(31)
    again = queue.lease(make_offer("worker-2", route=Route.MANAGED))
    record = records.begin(again, "http", replace(WHY, usd=9.0))
    assert (record.invocation_id, record.started_at) == (MINE, bench.clocks.wall - 31)


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


def test_an_intent_follows_the_provider_that_is_configured_now(records, lease, reader):
    records.begin(lease, "http", WHY)
    again = records.begin(lease, "bedrock", replace(WHY, provider="bedrock"))
    assert (again.provider, again.invocation_id) == ("bedrock", None)
    assert reader.find(lease.job.tenant_id, lease.job.id).routing.provider == "bedrock"
    records.note(lease.job.id, MINE)
    assert records.begin(lease, "http", WHY).provider == "bedrock", "what was started stays"
    assert reader.find(lease.job.tenant_id, lease.job.id).routing.provider == "bedrock"


def test_the_first_id_stays(records, lease):
    records.begin(lease, "http", WHY)
    records.note(lease.job.id, MINE)
    records.note(lease.job.id, InvocationId("theirs-2"))
    assert records.find(lease.job.id).invocation_id == MINE


def test_an_intent_can_be_withdrawn_but_a_started_job_cannot(records, lease):
    records.begin(lease, "http", WHY)
    records.withdraw(lease)
    assert records.find(lease.job.id) is None
    records.begin(lease, "http", WHY)
    records.note(lease.job.id, MINE)
    records.withdraw(lease)
    assert records.find(lease.job.id).invocation_id == MINE


def test_a_job_that_failed_there_may_go_home_and_one_that_waits_there_may_not(records, lease, queue):
    home = Routing(RouteReason.RETURNED, "the provider failed the job")
    setback = AttemptFailure(Failure(Reason.PROVIDER_FAILED, "no"), counts=False, routing=home)
    records.begin(lease, "http", WHY)
    records.note(lease.job.id, MINE)
    assert queue.fail_attempt(lease, setback).route is Route.MANAGED
    again = queue.lease(make_offer(route=Route.MANAGED))
    records.fail(again)
    assert queue.fail_attempt(again, setback).route is Route.GPU


def test_leftovers_are_ended_jobs_whose_provider_may_keep_something(records, lease, queue, bench):
    records.begin(lease, "http", WHY)
    records.note(lease.job.id, MINE)
    bench.clocks.pass_time(10)
    assert records.leftovers("http", idle_seconds=5) == [], "it still runs"
    queue.complete(lease, RESULT)
    assert records.leftovers("http", idle_seconds=20) == [], "its worker may be at it"
    assert records.leftovers("bedrock", idle_seconds=5) == [], "somebody else's"
    assert [record.job_id for record in records.leftovers("http", idle_seconds=5)] == [lease.job.id]
    records.settle(lease.job.id, RecordState.CLOSED)
    bench.clocks.pass_time(60)
    assert records.leftovers("http", idle_seconds=5) == []


def test_a_record_goes_with_its_job(records, lease, queue):
    records.begin(lease, "http", WHY)
    queue.complete(lease, RESULT)
    queue.remove(lease.job.tenant_id, lease.job.id)
    assert records.find(lease.job.id) is None
    records.settle(lease.job.id, RecordState.CLOSED)
    records.note(lease.job.id, MINE)
    assert records.find(lease.job.id) is None


def test_a_record_changes_nothing_else_about_the_job(records, lease, reader):
    before = reader.find(lease.job.tenant_id, lease.job.id)
    records.begin(lease, "http", WHY)
    records.note(lease.job.id, MINE)
    after = reader.find(lease.job.tenant_id, lease.job.id)
    assert after == replace(before, routing=WHY)
    assert after.state is JobState.RUNNING
