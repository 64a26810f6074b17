"""What every JobReader promises: a tenant sees its own, watchers see every change, retention finds the old."""

import pytest
import sqlalchemy as sa

from filmgate.errors import JobNotFound
from filmgate.jobs import Failure, JobState, Progress, Reason, Share, Stage, TenantId, new_job_id
from filmgate.scheduling.base import DURATION_BOUNDS, AttemptFailure
from tests.tickets import RESULT, make_offer, make_ticket

ACME, GLOBEX = TenantId("acme"), TenantId("globex")


def test_a_foreign_job_and_an_unknown_job_answer_alike(queue, reader):
    job = queue.enqueue(make_ticket())
    answers = []
    for tenant_id, job_id in ((GLOBEX, job.id), (ACME, new_job_id())):
        for ask in (reader.find, reader.events, reader.position, queue.cancel):
            with pytest.raises(JobNotFound) as refusal:
                ask(tenant_id, job_id)
            answers.append(str(refusal.value))
        with pytest.raises(JobNotFound) as refusal:
            reader.page(tenant_id, after=job_id)
        answers.append(str(refusal.value))
    assert len(set(answers)) == 1


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_pages_follow_each_other_without_gap_or_double(queue, reader, order):
    ids = [queue.enqueue(make_ticket()).id for _ in range(7)]
    queue.enqueue(make_ticket("globex"))
    seen, after, has_more = [], None, True
    while has_more:
        page = reader.page(ACME, after=after, limit=3, order=order)
        seen += [job.id for job in page.jobs]
        after, has_more = seen[-1], page.has_more
    assert seen == (ids if order == "asc" else ids[::-1])


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_a_page_says_where_its_queued_jobs_stand_as_position_does(queue, reader, order):
    shapes = [{}, {"model": "other"}, {"slo_seconds": 5}, {"gpu_seconds": 40}]
    ours = [queue.enqueue(make_ticket(**shapes[n % 4])) for n in range(12)]
    for tenant, weight in (("globex", 1.0), ("hooli", 3.0)):
        for _ in range(5):
            queue.enqueue(make_ticket(tenant, share=Share(weight=weight)))
    lease = queue.lease(make_offer())
    queue.fail_attempt(queue.lease(make_offer()), AttemptFailure(Failure(Reason.INTERNAL, "x")))
    queue.cancel(ACME, ours[0].id)
    page = reader.page(ACME, limit=8, order=order)
    expected = {job.id: reader.position(ACME, job.id) for job in page.jobs}
    assert page.positions == {job_id: place for job_id, place in expected.items() if place is not None}
    assert len(page.positions) >= 6
    assert lease.job.id not in page.positions


def test_a_page_takes_as_many_queries_for_many_queued_jobs_as_for_one(bench):
    counted = []
    sa.event.listen(bench.database.engine, "before_cursor_execute", lambda *_: counted.append(1))

    def queries(limit):
        counted.clear()
        assert len(bench.reader.page(ACME, limit=limit).positions) == limit
        return len(counted)

    for _ in range(30):
        bench.queue.enqueue(make_ticket())
    assert queries(30) == queries(1) == 3


def test_watchers_of_many_jobs_learn_of_the_changed_ones_with_one_call(queue, reader):
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


def test_events_tell_the_whole_story_in_order(queue, reader, clocks):
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


def test_finished_jobs_teach_and_then_expire(bench, queue, reader, clocks):
    job = queue.enqueue(make_ticket())
    queue.complete(queue.lease(make_offer()), RESULT)
    queue.enqueue(make_ticket())
    [lesson] = reader.measurements("flipbook")
    assert (lesson.measured, lesson.device, lesson.spec.frames) == (RESULT.measured, "cpu", 32)
    assert lesson.spec.prompt == ""
    assert reader.expired() == []
    clocks.pass_time(bench.settings.retention_seconds + 1)
    assert [old.id for old in reader.expired()] == [job.id]


def test_the_backlog_says_what_waits_what_runs_and_for_how_long(queue, clocks):
    assert (queue.backlog().loads, queue.backlog().oldest_queued_at) == ((), None)
    start = clocks.wall
    queue.enqueue(make_ticket(gpu_seconds=5, slo_seconds=10))
    clocks.pass_time(7)
    queue.enqueue(make_ticket("globex", gpu_seconds=7))
    queue.lease(make_offer())
    backlog = queue.backlog()
    assert (backlog.queued_jobs, backlog.running_jobs, backlog.queued_gpu_seconds()) == (1, 1, 7.0)
    assert backlog.oldest_queued_at == start + 7
    assert backlog.queued_gpu_seconds(model="wan") == 0


def test_statistics_count_every_end_once_and_outlive_the_jobs(queue, reader, clocks):
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
    assert {(t.tenant_id, t.state, t.reason, t.jobs, t.gpu_seconds) for t in statistics.tallies} == {
        (ACME, JobState.COMPLETED, None, 1, RESULT.measured.gpu_seconds),
        (GLOBEX, JobState.FAILED, Reason.CANCELLED, 1, 0.0),
    }
    seconds = {h.kind: (sum(h.counts), h.seconds) for h in statistics.histograms}
    assert (seconds["wait"], seconds["total"], seconds["denoise"]) == ((1, 3.0), (1, 11.0), (1, 5.0))
    [wait] = [h for h in statistics.histograms if h.kind == "wait"]
    assert wait.counts[DURATION_BOUNDS.index(5.0)] == 1
