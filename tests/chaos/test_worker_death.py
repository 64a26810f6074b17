"""Workers are killed, paused and run in parallel. Every job ends once, with one complete clip."""

import signal

import pytest

from filmgate.jobs import JobState, Reason, Stage
from filmgate.store.base import CHECKPOINT_PART
from tests.pauses import pause


@pytest.mark.parametrize(
    "stage",
    [
        pytest.param(Stage.TEXT, marks=pytest.mark.chaos),
        pytest.param(Stage.DENOISE, marks=pytest.mark.chaos),
        Stage.DECODE,
    ],
)
def test_a_worker_killed_in_any_stage_costs_one_attempt(site, stage):
    job = site.enqueue(steps=12)
    first = site.start_worker(pace=0.15)
    site.wait_for_stage(job, stage)
    site.kill(first)
    site.start_worker()
    done = site.wait_for(job)
    assert (done.state, done.attempt) == (JobState.COMPLETED, 2)
    assert site.is_whole(job)
    stages = [e.stage for e in site.reader.events(job.tenant_id, job.id) if e.attempt == 2 and e.stage]
    assert (stages[0] is Stage.DECODE) == (stage is Stage.DECODE), "denoising is not repeated"
    site.wait_until(lambda: site.parts(job) == ["clip-2.mp4", "spritesheet-2.jpg", "thumbnail-2.jpg"])


@pytest.mark.chaos
def test_a_worker_killed_between_upload_and_acknowledgement_leaves_one_clip(site):
    """The clip is stored but not acknowledged: the next worker makes it again under its own fence."""
    job = site.enqueue()
    lock = site.database.engine.connect().execution_options(filmgate_synchronous="FULL")
    worker = site.start_worker(pace=0.02)
    site.wait_for_stage(job, Stage.DECODE)
    with lock.begin():
        site.wait_until(lambda: "clip-1.mp4" in site.parts(job))
        site.kill(worker)
    lock.close()
    assert (site.find(job).state, "clip-1.mp4" in site.parts(job)) == (JobState.RUNNING, True)
    site.start_worker()
    done = site.wait_for(job)
    assert (done.state, done.clip.part) == (JobState.COMPLETED, "clip-2.mp4")
    assert site.is_whole(job)
    site.wait_until(lambda: "clip-1.mp4" not in site.parts(job))


def test_a_worker_paused_longer_than_its_lease_loses_the_job(site):
    job = site.enqueue(steps=12)
    paused = site.start_worker(pace=0.15)
    site.wait_for_stage(job, Stage.DENOISE)
    pause(paused.pid, site.database.url.database)
    site.start_worker()
    done = site.wait_for(job)
    assert (done.state, done.fence) == (JobState.COMPLETED, 2)
    paused.send_signal(signal.SIGCONT)
    site.wait_for_log("the lease of the job has ended")
    assert paused.poll() is None, "a lost lease does not stop the worker"
    assert site.find(job) == done
    assert site.is_whole(job)
    site.wait_until(lambda: site.parts(job) == ["clip-2.mp4", "spritesheet-2.jpg", "thumbnail-2.jpg"])


@pytest.mark.chaos
def test_a_worker_killed_with_a_prepared_job_loses_neither(site):
    """The worker dies while one job decodes and the next is prepared: both end once, each with its clip."""
    first, second = site.enqueue(steps=2, seed=1), site.enqueue(steps=2, seed=2)
    worker = site.start_worker(pace=0.4)
    site.wait_for(second, lambda job: job.state is JobState.RUNNING and not job.has_started)
    site.kill(worker)
    site.start_worker()
    for job in (first, second):
        done = site.wait_for(job)
        assert (done.state, done.fence) == (JobState.COMPLETED, 2)
        assert site.is_whole(job)


@pytest.mark.chaos
def test_two_workers_never_run_the_same_job(site):
    jobs = [site.enqueue(seed=n) for n in range(12)]
    for _ in range(2):
        site.start_worker(pace=0.005)
    for job in jobs:
        done = site.wait_for(job)
        assert (done.state, done.attempt, done.fence) == (JobState.COMPLETED, 1, 1)
        assert site.is_whole(job)
    assert len({site.find(job).worker_id for job in jobs}) == 2


@pytest.mark.chaos
def test_a_drained_worker_returns_its_job_with_the_checkpoint(make_site):
    site = make_site(FILMGATE_WORKER__DRAIN_SECONDS="0")
    job = site.enqueue()
    worker = site.start_worker(pace=0.1)
    site.wait_for_stage(job, Stage.DECODE)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == 0
    returned = site.find(job)
    assert (returned.state, returned.attempt, CHECKPOINT_PART in site.parts(job)) == (
        JobState.QUEUED,
        0,
        True,
    )
    site.start_worker()
    assert (site.wait_for(job).attempt, site.is_whole(job)) == (1, True)


@pytest.mark.chaos
def test_a_job_that_kills_three_workers_fails_with_the_reason(site):
    job = site.enqueue(steps=500)
    for attempt in (1, 2, 3):
        worker = site.start_worker()
        site.wait_for(job, lambda j, n=attempt: j.attempt == n and j.has_started)
        site.kill(worker)
    site.start_worker()
    failed = site.wait_for(job)
    assert failed.failure.reason is Reason.WORKER_LOST


def test_the_log_of_a_worker_does_not_contain_the_prompt(site):
    job = site.enqueue(prompt="zanzibar marmalade")
    site.start_worker()
    site.wait_for(job)
    log = site.log.read_text()
    assert job.trace_id in log
    assert "zanzibar" not in log
