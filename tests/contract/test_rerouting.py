"""What every JobQueue promises about routes: only what waits moves, once, and the counters follow."""

import threading
from collections import Counter
from dataclasses import replace

import sqlalchemy as sa

from filmgate.database.schema import invocations, jobs
from filmgate.jobs import (
    Failure,
    JobState,
    Reason,
    Route,
    RouteReason,
    Routing,
    Share,
    TenantId,
    new_job_id,
)
from filmgate.scheduling.base import AttemptFailure
from filmgate.scheduling.waiting import Move, Turn
from tests.tickets import PROMPT, RESULT, make_offer, make_ticket

ACME = TenantId("acme")
LATE = Routing(RouteReason.DEADLINE, "home 240 s, there 60 s", "elsewhere", "ray", ("5 s",), 7.5, 1000.0)
REFUSED = AttemptFailure(Failure(Reason.PROVIDER_FAILED, "refused"), counts=False)
MANAGED = make_offer("managed-1", route=Route.MANAGED)


def move(job, route=Route.MANAGED, routing=LATE):
    return Move(job.tenant_id, job.id, route, routing)


def on_managed(ticket):
    return replace(ticket, route=Route.MANAGED, routing=LATE)


def invoke(bench, job, state="pending"):
    """The row a managed worker writes before it asks the provider."""
    with bench.database.write() as connection:
        seq = connection.execute(sa.select(jobs.c.seq).where(jobs.c.id == job.id)).scalar_one()
        row = {"provider": "elsewhere", "token": "t", "state": state, "started_at": 1.0, "updated_at": 1.0}
        connection.execute(sa.insert(invocations).values(row | {"job_seq": seq}))


def test_a_moved_job_is_leased_on_its_new_route_with_the_reason(queue, reader):
    job = queue.enqueue(make_ticket())
    assert queue.reroute([move(job)]) == 1
    assert queue.lease(make_offer()) is None
    lease = queue.lease(MANAGED)
    assert (lease.job.id, lease.job.route, lease.job.routing) == (job.id, Route.MANAGED, LATE)
    assert (lease.job.attempt, lease.job.spec.prompt) == (1, PROMPT)
    assert queue.complete(lease, RESULT).state is JobState.COMPLETED


def test_a_move_is_an_event_that_says_where_and_why(queue, reader):
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


def test_moving_twice_is_moving_once(queue, reader):
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


def test_a_new_reason_to_stay_is_written_without_an_event(queue, reader):
    job = queue.enqueue(make_ticket())
    stays = Routing(RouteReason.PROVIDER_SLOWER, "home 20 s, there 60 s", decided_at=5.0)
    assert queue.reroute([move(job, Route.GPU, stays)]) == 0
    found = reader.find(ACME, job.id)
    assert (found.routing, found.revision) == (stays, job.revision)
    assert queue.lease(make_offer()).job.routing == stays


def test_the_line_has_the_order_of_deadlines_whose_turn_it_is_and_no_prompt(queue, reader, clocks):
    late = queue.enqueue(make_ticket(slo_seconds=900))
    soon = queue.enqueue(make_ticket("globex", slo_seconds=60, share=Share(weight=2)))
    queue.enqueue(on_managed(make_ticket(slo_seconds=1)))
    line = reader.waiting(Route.GPU)
    assert [job.job_id for job in line.jobs] == [soon.id, late.id]
    assert (line.now, line.turns[ACME]) == (clocks.wall, Turn(1.0, 0.0))
    assert line.turns[TenantId("globex")].weight == 2.0
    first = line.jobs[0]
    assert (first.spec.prompt, first.deadline_at, first.predicted) == ("", soon.deadline_at, soon.predicted)
    assert first.reason is RouteReason.DEFAULT
    assert [job.job_id for job in reader.waiting(Route.GPU, limit=1).jobs] == [soon.id]


def test_a_job_in_its_backoff_waits_too_and_starts_at_once_elsewhere(queue, reader):
    job = queue.enqueue(make_ticket())
    queue.fail_attempt(queue.lease(make_offer()), AttemptFailure(Failure(Reason.OUT_OF_MEMORY, "no room")))
    assert [waiting.job_id for waiting in reader.waiting(Route.GPU).jobs] == [job.id]
    assert queue.reroute([move(job)]) == 1
    assert queue.lease(MANAGED).job.attempt == 2


def test_what_a_provider_was_asked_to_render_neither_shows_nor_moves(bench, queue, reader):
    job = queue.enqueue(on_managed(make_ticket()))
    invoke(bench, job)
    home = move(job, Route.GPU, Routing(RouteReason.PROVIDER_UNHEALTHY))
    assert reader.waiting(Route.MANAGED).jobs == ()
    assert queue.reroute([home]) == 0
    assert reader.find(ACME, job.id).route is Route.MANAGED


def test_a_job_the_provider_failed_may_come_home(bench, queue, reader):
    job = queue.enqueue(on_managed(make_ticket()))
    invoke(bench, job, "failed")
    assert queue.reroute([move(job, Route.GPU, Routing(RouteReason.PROVIDER_UNHEALTHY))]) == 1
    assert queue.lease(make_offer()).job.id == job.id


def test_a_returned_job_is_home_at_once_with_its_attempt_and_its_reason(queue, reader):
    job = queue.enqueue(on_managed(make_ticket()))
    why = Routing(RouteReason.RETURNED, "the provider refused the prompt", "elsewhere")
    returned = queue.fail_attempt(
        queue.lease(MANAGED), AttemptFailure(REFUSED.failure, counts=False, routing=why)
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


def test_a_returned_job_that_is_being_cancelled_ends(queue):
    job = queue.enqueue(on_managed(make_ticket()))
    lease = queue.lease(MANAGED)
    queue.cancel(ACME, job.id)
    back = AttemptFailure(REFUSED.failure, counts=False, routing=Routing(RouteReason.RETURNED))
    assert queue.fail_attempt(lease, back).failure.reason is Reason.CANCELLED


def test_the_backlog_counts_moved_jobs_where_they_are(queue):
    ids = [queue.enqueue(make_ticket(gpu_seconds=10)) for _ in range(3)]
    queue.reroute([move(job) for job in ids[:2]])
    loads = {(load.route, load.state): (load.jobs, load.gpu_seconds) for load in queue.backlog().loads}
    assert loads == {
        (Route.GPU, JobState.QUEUED): (1, 10.0),
        (Route.MANAGED, JobState.QUEUED): (2, 20.0),
    }


def test_decisions_are_counted_by_route_and_reason_and_the_usual_is_not(queue, reader):
    queue.enqueue(on_managed(make_ticket()))
    home = [queue.enqueue(make_ticket()) for _ in range(3)]
    queue.reroute([move(home[0]), move(home[1], Route.GPU, Routing(RouteReason.POLICY, "not allowed"))])
    counted = {(tally.route, tally.reason): tally.jobs for tally in reader.statistics().routings}
    assert counted == {(Route.MANAGED, RouteReason.DEADLINE): 2, (Route.GPU, RouteReason.POLICY): 1}


def test_a_spill_and_workers_in_a_race_give_every_job_to_one_of_them(bench, queue):
    for n in range(60):
        queue.enqueue(make_ticket(f"tenant-{n % 3}"))
    line = bench.reader.waiting(Route.GPU)
    moves = [Move(job.tenant_id, job.job_id, Route.MANAGED, LATE) for job in line.jobs]
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
    assert queue.backlog().queued_jobs == 0


def test_workers_that_ask_for_work_are_present_and_the_silent_are_told_apart(queue, clocks):
    assert queue.backlog().workers == ()
    queue.lease(make_offer("a", models=("flipbook", "wan")))
    clocks.pass_time(20)
    queue.lease(MANAGED)
    silent = {worker.worker_id: worker.silent_seconds for worker in queue.backlog().workers}
    assert silent == {"a": 20.0, "managed-1": 0.0}
    assert {worker.models for worker in queue.backlog().workers} == {("flipbook", "wan"), ("flipbook",)}
    clocks.pass_time(3700)
    queue.lease(MANAGED)
    assert [worker.worker_id for worker in queue.backlog().workers] == ["managed-1"]


def test_a_worker_that_renders_is_heard_by_its_heartbeat(queue, clocks):
    queue.enqueue(make_ticket())
    lease = queue.lease(make_offer())
    for _ in range(4):
        clocks.pass_time(25)
        queue.heartbeat(lease)
    (worker,) = queue.backlog().workers
    assert worker.silent_seconds == 0.0


def test_after_a_reboot_the_workers_of_before_are_not_heard_of(queue, clocks):
    queue.lease(make_offer("before"))
    clocks.steady = 5.0
    (worker,) = queue.backlog().workers
    assert worker.silent_seconds > 3600
    queue.lease(make_offer("after"))
    assert [worker.worker_id for worker in queue.backlog().workers] == ["after"]
