"""Tenants share the GPU by weight and predicted seconds, and counting jobs is never needed."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from filmgate.jobs import Failure, JobState, Reason, Route, RouteReason, Routing, Share, TenantId
from filmgate.scheduling.base import AttemptFailure
from filmgate.scheduling.waiting import Move
from tests.tickets import RESULT, make_offer, make_ticket

pytestmark = pytest.mark.parametrize("delivery", ["asked", "sqs"], indirect=True)
CRASH = AttemptFailure(Failure(Reason.OUT_OF_MEMORY, "no rung of the ladder held"))


def lease_tenant(queue):
    return queue.lease(make_offer()).job.tenant_id


def test_a_first_job_does_not_wait_for_anothers_backlog(queue):
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


def test_idling_saves_nothing_up(queue):
    for _ in range(10):
        queue.enqueue(make_ticket("steady"))
    for _ in range(5):
        lease_tenant(queue)
    for _ in range(10):
        queue.enqueue(make_ticket("sleeper"))
    assert Counter(lease_tenant(queue) for _ in range(6)) == {"steady": 3, "sleeper": 3}


def test_cancelled_work_costs_no_share(queue):
    ids = [queue.enqueue(make_ticket("fickle", gpu_seconds=1000)).id for _ in range(20)]
    for job_id in ids:
        queue.cancel(TenantId("fickle"), job_id)
    queue.enqueue(make_ticket("patient"))
    queue.enqueue(make_ticket("patient"))
    queue.enqueue(make_ticket("fickle"))
    assert "fickle" in {lease_tenant(queue), lease_tenant(queue)}


def test_position_counts_what_will_really_go_first(queue, reader):
    crowd = [queue.enqueue(make_ticket("crowd")) for _ in range(20)]
    mine = queue.enqueue(make_ticket("newcomer"))
    assert reader.position(mine.tenant_id, mine.id) <= 2
    assert reader.position(crowd[-1].tenant_id, crowd[-1].id) == 21
    queue.lease(make_offer())
    queue.lease(make_offer())
    assert reader.position(mine.tenant_id, mine.id) is None
    assert reader.position(crowd[1].tenant_id, crowd[1].id) == 1


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from("ABabLCFGXMHt"), max_size=40))
def test_the_counters_agree_with_the_rows_after_any_history(bench, script):
    """A and B enqueue, a and b cancel, L leases, C completes, F fails, G hands back, X loses, M sends what
    waits to the managed route and H home again, t waits.
    """
    queue, held = bench.queue, []
    for letter in script:
        if letter in "MH":
            send(bench, Route.MANAGED if letter == "M" else Route.GPU)
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
    loads = {(i.tenant_id, i.route, i.state): (i.jobs, i.gpu_seconds) for i in queue.backlog().loads}
    assert loads == dict(counted)
    for tenant, queued, running in accounts:
        assert queued == sum(counted.get((tenant, route, JobState.QUEUED), (0,))[0] for route in Route)
        assert running == sum(counted.get((tenant, route, JobState.RUNNING), (0,))[0] for route in Route)


def send(bench, target):
    source = Route.GPU if target is Route.MANAGED else Route.MANAGED
    line, why = bench.reader.waiting(source), Routing(RouteReason.AGE)
    moves = [Move(job.tenant_id, job.job_id, target, why) for job in line.jobs]
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
            queue.fail_attempt(lease, CRASH if letter == "F" else AttemptFailure(CRASH.failure, counts=False))
    elif letter == "X" and held:
        held.pop()
    elif letter == "t":
        clocks.pass_time(10)
