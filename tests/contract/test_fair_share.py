"""Tenants share GPUs by weight and predicted seconds."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from filmgate.jobs import (
    Failure,
    JobState,
    Progress,
    Reason,
    Route,
    RouteReason,
    Routing,
    Share,
    Stage,
    TenantId,
    WorkerId,
)
from filmgate.scheduling.base import AttemptFailure, Move
from filmgate.scheduling.forecast import forecast
from filmgate.scheduling.workers import WorkerRegistry, WorkerStatus
from tests.tickets import RESULT, make_offer, make_ticket

pytestmark = pytest.mark.parametrize("waker", ["poll", "sqs"], indirect=True)
CRASH = AttemptFailure(Failure(Reason.OUT_OF_MEMORY, "out of GPU memory"))
OUTAGE = AttemptFailure(Failure(Reason.STORE_FAILED, "away"), uses_attempt=False, retry_seconds=20.0)


def lease_tenant(queue):
    return queue.lease(make_offer()).job.tenant_id


def test_a_first_job_does_not_wait_for_the_backlog_of_another_tenant(queue):
    for _ in range(50):
        queue.enqueue(make_ticket("crowd"))
    for _ in range(10):
        lease_tenant(queue)
    queue.enqueue(make_ticket("newcomer"))
    assert "newcomer" in {lease_tenant(queue), lease_tenant(queue)}


def test_tenants_get_gpu_seconds_in_proportion_to_weight_not_job_count(queue):
    for _ in range(32):
        queue.enqueue(make_ticket("long", gpu_seconds=30))
        queue.enqueue(make_ticket("short", gpu_seconds=10))
        queue.enqueue(make_ticket("heavy", gpu_seconds=10, share=Share(weight=2)))
    seconds = Counter()
    for _ in range(48):
        job = queue.lease(make_offer()).job
        seconds[job.tenant_id] += job.predicted.gpu_seconds
    assert seconds["long"] == pytest.approx(seconds["short"], abs=30)
    assert seconds["heavy"] == pytest.approx(2 * seconds["short"], abs=30)


def test_an_idle_tenant_saves_up_no_share(queue):
    for _ in range(10):
        queue.enqueue(make_ticket("steady"))
    for _ in range(5):
        lease_tenant(queue)
    for _ in range(10):
        queue.enqueue(make_ticket("sleeper"))
    assert Counter(lease_tenant(queue) for _ in range(6)) == {"steady": 3, "sleeper": 3}


def test_an_idle_tenant_saves_up_no_share_while_another_waits_at_its_limit(queue):
    """A tenant at `max_running` falls behind the others, but nobody else may join there."""
    for _ in range(20):
        queue.enqueue(make_ticket("steady"))
    for _ in range(2):
        queue.enqueue(make_ticket("capped", share=Share(max_running=1)))
    for _ in range(10):
        lease_tenant(queue)
    for _ in range(10):
        queue.enqueue(make_ticket("sleeper"))
    assert Counter(lease_tenant(queue) for _ in range(6)) == {"steady": 3, "sleeper": 3}


def test_a_tenant_whose_store_is_away_gets_its_share_and_no_more(bench, queue):
    """Its jobs come back again and again: each time after a pause, and without using an attempt."""
    for _ in range(5):
        queue.enqueue(make_ticket("away", gpu_seconds=60))
    for _ in range(20):
        queue.enqueue(make_ticket("steady", gpu_seconds=60))
    leased = Counter()
    for _ in range(20):
        lease = queue.lease(make_offer())
        leased[lease.job.tenant_id] += 1
        queue.heartbeat(lease, Progress(Stage.UPLOAD, 0, 1, 0.9))
        bench.clocks.pass_time(25)
        if lease.job.tenant_id == "away":
            queue.fail_attempt(lease, OUTAGE)
        else:
            queue.complete(lease, RESULT)
    assert leased == {"away": 10, "steady": 10}


def test_one_look_finds_a_job_however_many_pauses_have_ended(bench, queue):
    """An idle worker waits after a look that found nothing."""
    for number in range(30):
        queue.enqueue(make_ticket(f"tenant-{number}"))
    while lease := queue.lease(make_offer()):
        queue.fail_attempt(lease, OUTAGE)
    bench.clocks.pass_time(25)
    assert queue.lease(make_offer()) is not None


def test_a_job_that_came_back_before_it_started_costs_no_share(bench, queue):
    queue.enqueue(make_ticket("away"))
    for _ in range(5):
        queue.fail_attempt(queue.lease(make_offer()), OUTAGE)
        bench.clocks.pass_time(25)
    with bench.database.read() as connection:
        assert connection.exec_driver_sql("SELECT virtual_time FROM accounts").scalar_one() == 0.0


def test_cancelled_jobs_use_no_share(queue):
    ids = [queue.enqueue(make_ticket("fickle", gpu_seconds=1000)).id for _ in range(20)]
    for job_id in ids:
        queue.cancel(TenantId("fickle"), job_id)
    queue.enqueue(make_ticket("patient"))
    queue.enqueue(make_ticket("patient"))
    queue.enqueue(make_ticket("fickle"))
    assert "fickle" in {lease_tenant(queue), lease_tenant(queue)}


def test_the_forecast_knows_which_tenant_goes_first(bench, queue, reader):
    registry = WorkerRegistry(bench.database)
    registry.heartbeat(WorkerStatus(WorkerId("worker-1"), Route.GPU, ("flipbook",), capacity=2))
    crowd = [queue.enqueue(make_ticket("crowd")) for _ in range(20)]
    mine = queue.enqueue(make_ticket("newcomer"))
    slots = forecast(reader.snapshot()).slots
    assert slots[mine.id].position <= 2
    assert slots[crowd[-1].id].position == 21
    queue.lease(make_offer())
    queue.lease(make_offer())
    slots = forecast(reader.snapshot()).slots
    assert mine.id not in slots
    assert slots[crowd[1].id].position == 1


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(st.sampled_from("ABabLCFGXMHt"), max_size=40))
def test_the_counters_agree_with_the_rows_after_any_history(bench, script):
    """A and B enqueue, a and b cancel, L leases, C completes, F fails, G drains, X loses the worker, M moves
    queued jobs to the managed route, H moves them back, t passes time.
    """
    queue, held = bench.queue, []
    for letter in script:
        if letter in "MH":
            move(bench, Route.MANAGED if letter == "M" else Route.GPU)
        else:
            perform(letter, queue, held, bench.clocks)
    counted = Counter()
    with bench.database.read() as connection:
        rows = connection.exec_driver_sql(
            "SELECT tenant_id, route, state, count(*), sum(predicted_gpu_seconds) FROM jobs"
            " WHERE state IN ('queued', 'running') GROUP BY tenant_id, route, state"
        ).all()
        accounts = connection.exec_driver_sql("SELECT tenant_id, queued, running FROM accounts").all()
    for tenant, route, state, jobs, seconds in rows:
        counted[tenant, route, state] = (jobs, pytest.approx(seconds))
    counts = bench.reader.backlog().counts
    assert {(i.tenant_id, i.route, i.state): (i.jobs, i.gpu_seconds) for i in counts} == dict(counted)
    for tenant, queued, running in accounts:
        assert queued == sum(counted.get((tenant, route, JobState.QUEUED), (0,))[0] for route in Route)
        assert running == sum(counted.get((tenant, route, JobState.RUNNING), (0,))[0] for route in Route)


def move(bench, target):
    source = Route.GPU if target is Route.MANAGED else Route.MANAGED
    queued, why = bench.reader.snapshot().queued, Routing(RouteReason.AGE)
    movable = [job for job in queued if job.route is source and not job.was_running]
    moves = [Move(job.tenant_id, job.job_id, target, why) for job in movable]
    assert bench.queue.reroute(moves) == len(moves)


def perform(letter, queue, held, clocks):
    tenant = letter.lower() if letter in "ABab" else None
    if letter in "AB":
        queue.enqueue(make_ticket(tenant))
    elif letter in "ab":
        if own := [lease.job for lease in held if lease.job.tenant_id == tenant]:
            queue.cancel(own[0].tenant_id, own[0].id)
    elif letter == "L":
        if lease := queue.lease(make_offer()):
            held[:] = [other for other in held if other.job.id != lease.job.id] + [lease]
    elif letter in "CFG" and held:
        lease = held.pop()
        if letter == "C":
            queue.complete(lease, RESULT)
        else:
            queue.fail_attempt(lease, replace(CRASH, uses_attempt=letter == "F"))
    elif letter == "X" and held:
        held.pop()
    elif letter == "t":
        clocks.pass_time(10)
