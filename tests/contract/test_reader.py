"""The contract of every JobReader."""

import pytest
import sqlalchemy as sa

from filmgate.database.schema import audit_records
from filmgate.errors import JobNotFound
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
    WorkerId,
    new_job_id,
)
from filmgate.scheduling.base import AttemptFailure, Move
from filmgate.scheduling.records import DURATION_BOUNDS
from filmgate.scheduling.workers import WorkerRegistry, WorkerStatus
from tests.tickets import RESULT, make_offer, make_ticket

ACME, GLOBEX = TenantId("acme"), TenantId("globex")


def test_the_error_for_a_job_of_another_tenant_is_the_error_for_an_unknown_job(queue, reader):
    job = queue.enqueue(make_ticket())
    removed = queue.enqueue(make_ticket())
    remove(queue, removed)
    messages = []
    for tenant_id, job_id in ((GLOBEX, job.id), (GLOBEX, removed.id), (ACME, new_job_id())):
        for call in (reader.find, reader.events, queue.cancel):
            with pytest.raises(JobNotFound) as error:
                call(tenant_id, job_id)
            messages.append(str(error.value))
        with pytest.raises(JobNotFound) as error:
            reader.page(tenant_id, after=job_id)
        messages.append(str(error.value))
    assert len(set(messages)) == 1


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_pages_list_every_job_once(queue, reader, order):
    ids = [queue.enqueue(make_ticket()).id for _ in range(7)]
    queue.enqueue(make_ticket("globex"))
    seen, after, has_more = [], None, True
    while has_more:
        page = reader.page(ACME, after=after, limit=3, order=order)
        seen += [job.id for job in page.jobs]
        after, has_more = seen[-1], page.has_more
    assert seen == (ids if order == "asc" else ids[::-1])


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_a_list_goes_on_after_a_job_that_was_removed(queue, reader, clocks, order):
    jobs = []
    for seconds in (0, 5, 0, -3600, 5, 0, 0):  # some at the same instant, some after a step of the clock
        clocks.step(seconds)
        jobs.append(queue.enqueue(make_ticket()))
        queue.enqueue(make_ticket("globex"))
    listed = jobs if order == "asc" else jobs[::-1]
    for removed in range(1, 6):
        remove(queue, listed[removed])
        page = reader.page(ACME, after=listed[removed].id, limit=10, order=order)
        assert [job.id for job in page.jobs] == [job.id for job in listed[removed + 1 :]]
        # The others are before it.
        other = reader.page(
            ACME, after=listed[removed].id, limit=10, order="desc" if order == "asc" else "asc"
        )
        assert [job.id for job in other.jobs] == [listed[0].id]


def test_jobs_whose_creation_left_the_audit_log_are_older_than_a_removed_job(bench, queue, reader):
    old, removed, new = (queue.enqueue(make_ticket()) for _ in range(3))
    remove(queue, removed)
    with bench.database.write() as connection:
        connection.execute(sa.delete(audit_records).where(audit_records.c.job_id == old.id))
    pages = [reader.page(ACME, after=removed.id, order=order).jobs for order in ("desc", "asc")]
    assert [[job.id for job in page] for page in pages] == [[old.id], [new.id]]
    with bench.database.write() as connection:
        connection.execute(sa.delete(audit_records))
    with pytest.raises(JobNotFound):
        reader.page(ACME, after=removed.id)


def remove(queue, job):
    queue.cancel(job.tenant_id, job.id)
    queue.remove(job.tenant_id, job.id)


def test_a_page_takes_the_same_number_of_queries_for_any_number_of_jobs(bench):
    counted = []
    sa.event.listen(bench.database.engine, "before_cursor_execute", lambda *_: counted.append(1))

    def queries(limit):
        counted.clear()
        assert len(bench.reader.page(ACME, limit=limit).jobs) == limit
        return len(counted)

    for _ in range(30):
        bench.queue.enqueue(make_ticket())
    assert queries(30) == queries(1) <= 2


def test_changes_returns_only_the_jobs_that_changed(queue, reader):
    jobs = [queue.enqueue(make_ticket(slo_seconds=60 + n)) for n in range(5)]
    seen = {job.id: job.revision for job in jobs}
    assert reader.changes(seen) == []
    lease = queue.lease(make_offer())
    queue.heartbeat(lease, Progress(Stage.DENOISE, 1, 8, 0.1))
    queue.cancel(ACME, jobs[3].id)
    changed = {job.id: job for job in reader.changes(seen)}
    assert {job_id: job.state for job_id, job in changed.items()} == {
        jobs[0].id: JobState.RUNNING,
        jobs[3].id: JobState.FAILED,
    }
    assert changed[jobs[0].id].progress.done == 1
    assert reader.changes(seen | {job.id: job.revision for job in changed.values()}) == []


def test_events_list_every_change_in_order(queue, reader, clocks):
    job = queue.enqueue(make_ticket())
    lease = queue.lease(make_offer())
    queue.heartbeat(lease, Progress(Stage.DENOISE, 0, 8, 0.0))
    queue.heartbeat(lease, Progress(Stage.DENOISE, 0, 8, 0.0))
    queue.heartbeat(lease, Progress(Stage.DENOISE, 4, 8, 0.4))
    queue.fail_attempt(lease, AttemptFailure(Failure(Reason.OUT_OF_MEMORY, "no room")))
    clocks.pass_time(5)
    lease = queue.lease(make_offer())
    queue.heartbeat(lease, Progress(Stage.DECODE, 0, 8, 0.5))
    queue.complete(lease, RESULT)
    events = reader.events(ACME, job.id)
    assert [(e.state, e.stage, e.attempt, e.reason) for e in events] == [
        (JobState.RUNNING, None, 1, None),
        (JobState.RUNNING, Stage.DENOISE, 1, None),
        (JobState.QUEUED, None, 1, Reason.OUT_OF_MEMORY),
        (JobState.RUNNING, None, 2, None),
        (JobState.RUNNING, Stage.DECODE, 2, None),
        (JobState.COMPLETED, Stage.DECODE, 2, None),
    ]
    revisions = [e.revision for e in events]
    assert revisions == sorted(set(revisions))
    assert reader.events(ACME, job.id, after=revisions[2]) == events[3:]


def test_finished_jobs_are_measurements_and_then_expire(bench, queue, reader, clocks):
    job = queue.enqueue(make_ticket())
    queue.complete(queue.lease(make_offer()), RESULT)
    queue.enqueue(make_ticket())
    [measurement] = reader.measurements("flipbook")
    assert (measurement.measured, measurement.spec.frames) == (RESULT.measured, 32)
    assert measurement.spec.prompt == ""
    assert reader.expired() == []
    clocks.pass_time(bench.settings.retention_seconds + 1)
    assert [old.id for old in reader.expired()] == [job.id]


def test_jobs_of_a_provider_do_not_displace_the_measurements_of_local_gpus(queue, reader, monkeypatch):
    """Otherwise a spill would make estimates fall back to the model's card."""
    monkeypatch.setattr("filmgate.scheduling.reader._MAX_MEASUREMENTS", 1)
    queue.enqueue(make_ticket(seed=1))
    queue.complete(queue.lease(make_offer()), RESULT)
    spilled = queue.enqueue(make_ticket(seed=2))
    queue.reroute([Move(ACME, spilled.id, Route.MANAGED, Routing())])
    queue.complete(queue.lease(make_offer(route=Route.MANAGED)), RESULT)
    assert [measurement.spec.seed for measurement in reader.measurements("flipbook")] == [1]


def test_the_backlog_counts_queued_and_running_jobs(queue, reader, clocks):
    assert (reader.backlog().counts, reader.backlog().oldest_queued_at) == ((), None)
    start = clocks.wall
    queue.enqueue(make_ticket(gpu_seconds=5, slo_seconds=10))
    clocks.pass_time(7)
    queue.enqueue(make_ticket("globex", gpu_seconds=7))
    queue.lease(make_offer())
    backlog = reader.backlog()
    assert (backlog.queued_jobs, backlog.running_jobs) == (1, 1)
    assert {(count.state, count.gpu_seconds) for count in backlog.counts} == {
        (JobState.RUNNING, 5.0),
        (JobState.QUEUED, 7.0),
    }
    assert backlog.oldest_queued_at == start + 7


def test_the_oldest_job_is_the_one_that_waits_longest_whatever_its_deadline_or_backoff(queue, reader, clocks):
    failed = AttemptFailure(Failure(Reason.OUT_OF_MEMORY, "out of memory"))
    retried = queue.enqueue(make_ticket())
    clocks.pass_time(7)
    starving = queue.enqueue(make_ticket(slo_seconds=86400))
    clocks.pass_time(7)
    queue.enqueue(make_ticket())
    lease = queue.lease(make_offer())
    assert (lease.job.id, reader.backlog().oldest_queued_at) == (retried.id, starving.created_at)
    queue.fail_attempt(lease, failed)
    assert reader.backlog().oldest_queued_at == retried.created_at


def test_statistics_count_every_ended_job_once_and_remain_after_it_is_removed(queue, reader, clocks):
    first = queue.enqueue(make_ticket())
    clocks.pass_time(3)
    lease = queue.lease(make_offer())
    clocks.pass_time(8)
    queue.complete(lease, RESULT)
    queue.complete(lease, RESULT)
    cancelled = queue.enqueue(make_ticket("globex"))
    queue.cancel(GLOBEX, cancelled.id)
    queue.cancel(GLOBEX, cancelled.id)
    queue.remove(ACME, first.id)
    statistics = reader.statistics()
    assert {(t.tenant_id, t.state, t.reason, t.jobs, t.gpu_seconds) for t in statistics.ended} == {
        (ACME, JobState.COMPLETED, None, 1, RESULT.measured.gpu_seconds),
        (GLOBEX, JobState.FAILED, Reason.CANCELLED, 1, 0.0),
    }
    seconds = {h.series.kind: (sum(h.counts), h.seconds) for h in statistics.histograms}
    assert (seconds["wait"], seconds["total"], seconds["denoise"]) == ((1, 3.0), (1, 11.0), (1, 5.0))
    [wait] = [h for h in statistics.histograms if h.series.kind == "wait"]
    assert wait.counts[DURATION_BOUNDS.index(5.0)] == 1


def test_a_snapshot_lists_some_jobs_per_lane_and_sums_up_the_rest(queue, reader):
    for tenant, model, jobs in (("acme", "flipbook", 60), ("acme", "wan", 5), ("globex", "flipbook", 55)):
        for _ in range(jobs):
            queue.enqueue(make_ticket(tenant, model=model, gpu_seconds=2))
    snapshot = reader.snapshot(limit=1)
    assert len(snapshot.queued) == 50 + 5 + 50
    assert {(tail.tenant_id, tail.model, tail.jobs, tail.gpu_seconds) for tail in snapshot.tails} == {
        (ACME, "flipbook", 10, 20.0),
        (GLOBEX, "flipbook", 5, 10.0),
    }


def test_a_snapshot_has_specs_without_prompts_only_on_request(queue, reader):
    job = queue.enqueue(make_ticket())
    assert reader.snapshot().queued[0].spec is None
    (queued,) = reader.snapshot(has_specs=True).queued
    assert (queued.job_id, queued.spec.size, queued.spec.prompt) == (job.id, job.spec.size, "")


def test_a_job_whose_worker_is_gone_is_queued_again_in_a_snapshot(bench, queue, reader, clocks):
    registry = WorkerRegistry(bench.database)
    registry.heartbeat(WorkerStatus(WorkerId("worker-1"), Route.GPU, ("flipbook",)))
    queue.enqueue(make_ticket())
    queue.lease(make_offer("worker-1"))
    snapshot = reader.snapshot()
    assert (len(snapshot.running), len(snapshot.queued)) == (1, 0)
    registry.leave(WorkerId("worker-1"))
    (queued,) = reader.snapshot().queued
    assert (queued.was_running, queued.ready_in) == (True, pytest.approx(bench.settings.lease_seconds))


def test_a_snapshot_shows_one_moment_although_jobs_change_while_it_is_read(bench, queue, reader):
    """Otherwise a job that is moved between two queries is listed twice."""
    queue.enqueue(make_ticket())
    crash = AttemptFailure(Failure(Reason.OUT_OF_MEMORY, "out of GPU memory"))
    job = queue.fail_attempt(queue.lease(make_offer()), crash)
    moved = []

    def move(_connection, _cursor, statement, *_rest):
        if "job_counts" in statement and not moved:
            moved.append(job.id)
            why = Routing(RouteReason.DEADLINE)
            assert queue.reroute([Move(job.tenant_id, job.id, Route.MANAGED, why)]) == 1

    sa.event.listen(bench.database.engine, "before_cursor_execute", move)
    (listed,) = reader.snapshot().queued
    assert (moved, listed.route) == ([job.id], Route.GPU)
    assert reader.snapshot().queued[0].route is Route.MANAGED
