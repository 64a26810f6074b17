"""The heartbeats of all provider jobs of a process, on one thread."""

from dataclasses import dataclass, field, replace

import pytest

from filmgate.errors import Cancelled, LeaseLost, QueueUnavailable
from filmgate.jobs import JobId, Lease, Progress, Stage, WorkerId
from filmgate.providers.managed.heartbeats import Heartbeats
from filmgate.scheduling.base import HeartbeatReply
from filmgate.settings import WorkerSettings
from tests.tickets import make_ticket, queued_job
from tests.waiting import wait_until

# Every heartbeat is due at every run.
SETTINGS = WorkerSettings(heartbeat_seconds=1e-6, progress_seconds=0.01)


@dataclass(eq=False)
class LeasedJob:
    """A provider job as the heartbeats see it."""

    lease: Lease
    stage: Stage | None = Stage.DENOISE
    end: Exception | None = None

    def opening(self):
        return Progress(self.stage, 0, 100, 0.0) if self.stage else None

    def progress(self):
        return Progress(self.stage, 50, 100, 0.5) if self.stage else None

    def stop(self, end):
        self.end = end


@dataclass
class ScriptedQueue:
    """Replies to heartbeats, or raises the error of a job."""

    errors: dict = field(default_factory=dict)
    cancelling: set = field(default_factory=set)
    sent: list = field(default_factory=list)

    def heartbeat(self, lease, progress=None):
        self.sent.append((lease.job.id, progress))
        if lease.job.id in self.errors:
            raise self.errors[lease.job.id]
        return HeartbeatReply(lease.job.id in self.cancelling)

    def count(self, job):
        return sum(job_id == job.lease.job.id for job_id, _ in self.sent)


def make_job(name):
    job = replace(queued_job(make_ticket(), now=0.0), id=JobId(name))
    return LeasedJob(Lease(job, WorkerId("managed"), fence=1, seconds=30.0))


@pytest.fixture
def queue():
    return ScriptedQueue()


@pytest.fixture
def jobs():
    return [make_job(name) for name in ("first", "second", "third")]


@pytest.fixture
def heartbeats(queue, jobs):
    heartbeats = Heartbeats(queue, SETTINGS)
    for job in jobs:
        heartbeats.add(job)
    return heartbeats


@pytest.mark.parametrize("error", [KeyError("a bug"), QueueUnavailable("down")])
def test_an_exception_from_one_heartbeat_does_not_stop_the_others(heartbeats, queue, jobs, error):
    queue.errors = {"first": error}
    for _ in range(3):
        heartbeats.run()
    assert [queue.count(job) for job in jobs] == [3, 3, 3]
    assert [job.end for job in jobs] == [None, None, None]
    queue.errors = {}
    heartbeats.run()
    assert queue.count(jobs[0]) == 4, "the failing one is retried"


def test_the_thread_survives_a_job_whose_heartbeats_always_fail(heartbeats, queue, jobs, task_failures):
    queue.errors = {"second": RuntimeError("a bug")}
    heartbeats.start()
    try:
        assert wait_until(lambda: min(queue.count(job) for job in jobs) >= 5)
    finally:
        heartbeats.stop()
    assert task_failures("managed-heartbeats") >= 5


def test_a_lost_lease_and_a_cancellation_stop_their_own_job_only(heartbeats, queue, jobs):
    queue.errors, queue.cancelling = {"first": LeaseLost("expired")}, {"second"}
    heartbeats.run()
    assert [type(job.end) for job in jobs] == [LeaseLost, Cancelled, type(None)]


def test_a_new_stage_is_reported_with_its_opening_and_then_with_progress(heartbeats, queue, jobs):
    heartbeats.run()
    heartbeats.run()
    reported = [progress.done for job_id, progress in queue.sent if job_id == "first"]
    assert reported == [0, 50]


def test_a_removed_job_gets_no_heartbeats(heartbeats, queue, jobs):
    heartbeats.remove(jobs[0])
    heartbeats.run()
    assert [queue.count(job) for job in jobs] == [0, 1, 1]
