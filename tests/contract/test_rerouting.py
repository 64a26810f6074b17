"""Queued jobs move between routes, and so do jobs that lost their worker; running and ended jobs do not."""

import threading
from collections import Counter
from contextlib import suppress
from dataclasses import replace

import pytest
import sqlalchemy as sa

from filmgate.database.schema import invocations, jobs
from filmgate.errors import LeaseLost
from filmgate.jobs import (
    Failure,
    JobState,
    Progress,
    Reason,
    Route,
    RouteReason,
    Routing,
    Stage,
    TenantId,
    new_job_id,
)
from filmgate.scheduling.base import AttemptFailure, Move
from tests.tickets import PROMPT, RESULT, make_offer, make_ticket

ACME = TenantId("acme")
LATE = Routing(
    RouteReason.DEADLINE, "own GPUs 240 s, provider 60 s", "elsewhere", "ray", ("5 s",), 7.5, 60.0, 1000.0
)
REFUSED = AttemptFailure(Failure(Reason.PROVIDER_FAILED, "refused"), uses_attempt=False)
MANAGED = make_offer("managed-1", route=Route.MANAGED)


def move(job, route=Route.MANAGED, routing=LATE):
    return Move(job.tenant_id, job.id, route, routing)


def on_managed(ticket):
    return replace(ticket, route=Route.MANAGED, routing=LATE)


def invoke(bench, job, state="pending"):
    """Insert the row that a managed worker writes before it calls the provider."""
    with bench.database.write() as connection:
        seq = connection.execute(sa.select(jobs.c.seq).where(jobs.c.id == job.id)).scalar_one()
        row = {"provider": "elsewhere", "state": state, "started_at": 1.0, "updated_at": 1.0}
        connection.execute(sa.insert(invocations).values(row | {"job_seq": seq}))


def test_a_moved_job_is_leased_on_its_new_route_with_the_reason(queue, reader):
    job = queue.enqueue(make_ticket())
    assert queue.reroute([move(job)]) == 1
    assert queue.lease(make_offer()) is None
    lease = queue.lease(MANAGED)
    assert (lease.job.id, lease.job.route, lease.job.routing) == (job.id, Route.MANAGED, LATE)
    assert (lease.job.attempt, lease.job.spec.prompt) == (1, PROMPT)
    assert queue.complete(lease, RESULT).state is JobState.COMPLETED


def test_a_move_is_an_event_with_route_and_reason(queue, reader):
    job = queue.enqueue(make_ticket())
    queue.reroute([move(job)])
    moved = reader.find(ACME, job.id)
    (event,) = reader.events(ACME, job.id, after=job.revision)
    assert (event.route, event.route_reason, event.state) == (
        Route.MANAGED,
        RouteReason.DEADLINE,
        JobState.QUEUED,
    )
    assert event.revision == moved.revision == job.revision + 1
    assert [seen.id for seen in reader.changes({job.id: job.revision})] == [job.id]


def test_reroute_is_idempotent(queue, reader):
    job = queue.enqueue(make_ticket())
    assert [queue.reroute([move(job)]) for _ in range(2)] == [1, 0]
    assert len(reader.events(ACME, job.id)) == 1


def test_running_ended_and_unknown_jobs_are_left_alone(queue, reader):
    running, ended = queue.enqueue(make_ticket(slo_seconds=1)), queue.enqueue(make_ticket())
    lease = queue.lease(make_offer())
    queue.cancel(ACME, ended.id)
    unknown = Move(ACME, new_job_id(), Route.MANAGED, LATE)
    before = reader.find(ACME, running.id)
    assert queue.reroute([move(running), move(ended), unknown]) == 0
    assert queue.reroute([]) == 0
    assert reader.find(ACME, running.id) == before
    assert queue.complete(lease, RESULT).route is Route.GPU


def test_a_job_that_lost_its_worker_moves_and_its_old_worker_gets_lease_lost(bench, queue, reader):
    """The same as a lease to another GPU worker: the fence keeps the old worker out."""
    job = queue.enqueue(make_ticket())
    old = queue.lease(make_offer())
    queue.heartbeat(old, Progress(Stage.DENOISE, 1, 4, 0.25))
    assert queue.reroute([move(job)]) == 0, "the worker holds the lease"
    bench.clocks.pass_time(bench.settings.lease_seconds + 1)
    assert queue.reroute([move(job, Route.GPU, Routing(RouteReason.POLICY, "not allowed"))]) == 0
    assert reader.find(ACME, job.id).state is JobState.RUNNING
    assert queue.reroute([move(job)]) == 1
    moved = reader.find(ACME, job.id)
    assert (moved.state, moved.route, moved.progress) == (JobState.QUEUED, Route.MANAGED, None)
    with pytest.raises(LeaseLost):
        queue.heartbeat(old)
    new = queue.lease(MANAGED)
    assert (new.job.id, new.job.attempt) == (job.id, 2)
    with pytest.raises(LeaseLost):
        queue.complete(old, RESULT)
    assert queue.complete(new, RESULT).state is JobState.COMPLETED
    reasons = [event.reason for event in reader.events(ACME, job.id) if event.state is JobState.QUEUED]
    assert Reason.WORKER_LOST in reasons


def test_a_lost_job_that_was_cancelled_or_has_no_attempt_left_fails_instead_of_moving(bench, queue, reader):
    cancelled, worn_out = (queue.enqueue(make_ticket()) for _ in range(2))
    for attempt in range(1, bench.settings.max_attempts + 1):
        leases = [queue.lease(make_offer()) for _ in range(2)]
        assert {lease.job.id for lease in leases} == {cancelled.id, worn_out.id}
        if attempt == bench.settings.max_attempts:
            queue.cancel(ACME, cancelled.id)
        bench.clocks.pass_time(bench.settings.lease_seconds + 1)
    assert queue.reroute([move(cancelled), move(worn_out)]) == 0
    ended = [reader.find(ACME, job.id) for job in (cancelled, worn_out)]
    assert [job.failure.reason for job in ended] == [Reason.CANCELLED, Reason.WORKER_LOST]


def test_a_new_reason_to_stay_is_written_without_an_event(queue, reader):
    job = queue.enqueue(make_ticket())
    stays = Routing(RouteReason.PROVIDER_SLOWER, "own GPUs 20 s, provider 60 s", decided_at=5.0)
    assert queue.reroute([move(job, Route.GPU, stays)]) == 0
    found = reader.find(ACME, job.id)
    assert (found.routing, found.revision) == (stays, job.revision)
    assert queue.lease(make_offer()).job.routing == stays


def test_a_job_in_its_backoff_can_move_and_then_starts_at_once(queue, reader):
    job = queue.enqueue(make_ticket())
    queue.fail_attempt(queue.lease(make_offer()), AttemptFailure(Failure(Reason.OUT_OF_MEMORY, "no room")))
    assert [queued.job_id for queued in reader.snapshot().queued] == [job.id]
    assert queue.reroute([move(job)]) == 1
    assert queue.lease(MANAGED).job.attempt == 2


def test_a_job_that_a_provider_renders_does_not_move(bench, queue, reader):
    job = queue.enqueue(on_managed(make_ticket()))
    invoke(bench, job)
    back = move(job, Route.GPU, Routing(RouteReason.PROVIDER_UNHEALTHY))
    assert [queued.spec for queued in reader.snapshot(has_specs=True).queued] == [None]
    assert queue.reroute([back]) == 0
    assert reader.find(ACME, job.id).route is Route.MANAGED


def test_a_job_that_failed_at_the_provider_can_move_back(bench, queue, reader):
    job = queue.enqueue(on_managed(make_ticket()))
    invoke(bench, job, "failed")
    assert queue.reroute([move(job, Route.GPU, Routing(RouteReason.PROVIDER_UNHEALTHY))]) == 1
    assert queue.lease(make_offer()).job.id == job.id


def test_a_returned_job_can_be_leased_at_once_with_its_attempt_and_reason(queue, reader):
    job = queue.enqueue(on_managed(make_ticket()))
    why = Routing(RouteReason.RETURNED, "the provider refused the prompt", "elsewhere")
    returned = queue.fail_attempt(
        queue.lease(MANAGED), AttemptFailure(REFUSED.failure, uses_attempt=False, routing=why)
    )
    assert (returned.state, returned.route, returned.routing, returned.attempt) == (
        JobState.QUEUED,
        Route.GPU,
        why,
        0,
    )
    assert queue.lease(MANAGED) is None
    assert queue.lease(make_offer()).job.id == job.id
    assert [event.route for event in reader.events(ACME, job.id)] == [None, None, Route.GPU, None]


def test_a_returned_job_that_is_being_cancelled_fails(queue):
    job = queue.enqueue(on_managed(make_ticket()))
    lease = queue.lease(MANAGED)
    queue.cancel(ACME, job.id)
    back = AttemptFailure(REFUSED.failure, uses_attempt=False, routing=Routing(RouteReason.RETURNED))
    assert queue.fail_attempt(lease, back).failure.reason is Reason.CANCELLED


def test_the_backlog_counts_moved_jobs_on_their_new_route(queue, reader):
    ids = [queue.enqueue(make_ticket(gpu_seconds=10)) for _ in range(3)]
    queue.reroute([move(job) for job in ids[:2]])
    counts = {(one.route, one.state): (one.jobs, one.gpu_seconds) for one in reader.backlog().counts}
    assert counts == {
        (Route.GPU, JobState.QUEUED): (1, 10.0),
        (Route.MANAGED, JobState.QUEUED): (2, 20.0),
    }


def test_decisions_other_than_the_default_are_counted_by_route_and_reason(queue, reader):
    queue.enqueue(on_managed(make_ticket()))
    on_gpu = [queue.enqueue(make_ticket()) for _ in range(3)]
    queue.reroute([move(on_gpu[0]), move(on_gpu[1], Route.GPU, Routing(RouteReason.POLICY, "not allowed"))])
    counted = {(one.route, one.reason): one.jobs for one in reader.statistics().routed}
    assert counted == {(Route.MANAGED, RouteReason.DEADLINE): 2, (Route.GPU, RouteReason.POLICY): 1}


def test_two_replicas_that_move_and_keep_jobs_of_the_same_tenants_do_not_deadlock(bench, queue):
    """One sends a job of `a` to the provider and keeps one of `b`, the other the reverse."""
    of_a, of_b = ([queue.enqueue(make_ticket(tenant)) for _ in range(2)] for tenant in ("a", "b"))
    stay = Routing(RouteReason.POLICY, "not allowed")
    both_in_between = threading.Barrier(2)
    moved = Counter()

    def meet(_connection, _cursor, statement, *_rest):
        if "jobs.state = 'running' AND jobs.route = 'gpu'" in statement:
            with suppress(threading.BrokenBarrierError):
                both_in_between.wait(1.0)

    def spill(name, leaving, staying):
        moved[name] = queue.reroute([move(leaving), move(staying, Route.GPU, stay)])

    sa.event.listen(bench.database.engine, "before_cursor_execute", meet)
    threads = [
        threading.Thread(target=spill, args=("1", of_a[0], of_b[0])),
        threading.Thread(target=spill, args=("2", of_b[1], of_a[1])),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert moved == {"1": 1, "2": 1}


def test_a_job_is_leased_once_while_spill_and_workers_compete(bench, queue):
    for n in range(60):
        queue.enqueue(make_ticket(f"tenant-{n % 3}"))
    queued = bench.reader.snapshot().queued
    moves = [Move(job.tenant_id, job.job_id, Route.MANAGED, LATE) for job in queued]
    taken: Counter[tuple[str, Route]] = Counter()

    def drain(offer):
        misses = 0
        while misses < 8:
            lease = queue.lease(offer)
            misses = misses + 1 if lease is None else 0
            if lease is not None:
                assert lease.job.route is offer.route
                taken[lease.job.id, offer.route] += 1

    def spill():
        for start in range(0, 60, 10):
            queue.reroute(moves[start : start + 10])

    threads = [threading.Thread(target=drain, args=(offer,)) for offer in (make_offer(), MANAGED)]
    threads.append(threading.Thread(target=spill))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    while (lease := queue.lease(MANAGED)) is not None:
        taken[lease.job.id, Route.MANAGED] += 1
    assert len(taken) == 60
    assert set(taken.values()) == {1}
    assert bench.reader.backlog().queued_jobs == 0
