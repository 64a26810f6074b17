"""The managed worker with SQLite, encrypted files, and a second Filmgate or Bedrock over HTTP."""

import json
import threading
from copy import copy
from dataclasses import replace

import pytest
import sqlalchemy as sa

from filmgate.database.schema import jobs
from filmgate.errors import QueueUnavailable
from filmgate.jobs import JobState, Reason, Route, RouteReason, Stage, WorkerId
from filmgate.models.cards import open_registry
from filmgate.providers.invocations import RecordState
from filmgate.providers.managed.orphans import OrphanSweep
from filmgate.scheduling.workers import WorkerRegistry, WorkerStatus
from filmgate.settings import ManagementSettings
from filmgate.worker_process import run_managed_worker
from tests.fake_bedrock import make_mp4
from tests.managed_site import ACME, open_managed_site
from tests.pattern_runner import pattern_clip
from tests.second_filmgate import endpoint_settings, second_filmgate
from tests.waiting import wait_until

JPEG = b"\xff\xd8\xff"
SLOW = {"expected_seconds": 20.0}


@pytest.fixture(scope="module")
def second(tmp_path_factory):
    with second_filmgate(tmp_path_factory.mktemp("second"), pace_seconds=0.005) as service:
        yield service


@pytest.fixture
def site(tmp_path, second):
    with open_managed_site(tmp_path / "site", endpoint_settings(second)) as site:
        yield site


def list_videos(second):
    with second.client() as client:
        return [video["id"] for video in client.get("/v1/videos").json()["data"]]


def test_a_second_filmgate_renders_the_same_clip_as_our_own_gpu(site, second):
    job = site.enqueue()
    with site.worker():
        done = site.wait_for(job)
        wait_until(lambda: site.record(job).state is RecordState.CLOSED)
    assert (done.state, done.device, done.attempt) == (JobState.COMPLETED, "managed:http", 1)
    assert site.read(job, done.clip.part) == pattern_clip(job.spec)
    assert done.measured.gpu_seconds == 0.0, "our own GPUs did no work"
    assert list_videos(second) == []


def test_a_managed_worker_takes_jobs_of_every_model_that_gpu_workers_have_served(site, monkeypatch):
    """Also of models without a card in a file, as all but Flipbook are: no other process takes such jobs."""
    seen = []

    def announce(services, worker, _stop):
        seen.append(worker.status.models)
        registry = WorkerRegistry(services.database)
        film = replace(open_registry("flipbook").default, name="film")
        registry.heartbeat(WorkerStatus(WorkerId("gpu"), Route.GPU, ("film",)), [film])
        registry.leave(WorkerId("gpu"))
        wait_until(lambda: worker.status.models != seen[0])
        seen.append(worker.status.models)

    monkeypatch.setattr("filmgate.worker_process.work_until_drained", announce)
    monkeypatch.setattr("filmgate.worker_process.configure_logs", lambda: None)
    monkeypatch.setattr("filmgate.worker_process.HEARTBEAT_SECONDS", 0.02)
    settings = site.settings.model_copy(update={"management": ManagementSettings(enabled=False)})
    run_managed_worker(settings, (), site.provider)
    assert seen == [("flipbook",), ("film", "flipbook")]


def test_the_job_records_its_provider_and_the_changes(managed_site):
    job = managed_site.enqueue()
    with managed_site.worker():
        done = managed_site.wait_for(job)
    assert (done.routing.provider, done.routing.provider_model, done.routing.usd) == (
        "bedrock",
        "luma.ray-v2:0",
        3.75,
    )
    assert done.routing.changes == (
        "model pattern -> luma.ray-v2:0",
        "size 128x128 -> 540x540",
        "length 2 s -> 5 s",
        "fps 16 -> 24",
        "seed dropped",
    )
    assert (done.routing.reason, done.routing.detail) == (RouteReason.DEADLINE, "the wait is too long")


def test_a_clip_of_bedrock_gets_stills_and_is_deleted_from_the_bucket(managed_site, bedrock, clip_bucket):
    job = managed_site.enqueue()
    with managed_site.worker():
        done = managed_site.wait_for(job)
        wait_until(lambda: managed_site.record(job).state is RecordState.CLOSED)
    assert managed_site.read(job, done.clip.part) == make_mp4()
    assert managed_site.read(job, done.clip.thumbnail).startswith(JPEG)
    assert managed_site.read(job, done.clip.spritesheet).startswith(JPEG)
    assert bedrock.files(clip_bucket) == []
    assert len(bedrock.paid) == 1


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_throttled_job_on_postgresql_completes(tmp_path, rented, bedrock, database_url):
    with open_managed_site(tmp_path, rented[1], provider=rented[2], database_url=database_url) as site:
        bedrock.start_error = "throttle"
        job = site.enqueue()
        with site.worker():
            wait_until(lambda: bedrock.starts)
            bedrock.start_error = None
            assert site.wait_for(job).state is JobState.COMPLETED
            wait_until(lambda: site.record(job).state is RecordState.CLOSED)
    assert list(bedrock.paid) == [job.id]


def test_a_clip_that_cannot_be_decoded_is_stored_without_stills(site):
    job = site.enqueue()
    with site.worker():
        done = site.wait_for(job)
    assert (done.clip.thumbnail, done.clip.spritesheet) == (None, None)
    assert site.parts(job) == ["clip-1.mp4"]


def test_the_stored_clip_is_encrypted(managed_site):
    job = managed_site.enqueue()
    with managed_site.worker():
        managed_site.wait_for(job)
    stored = (managed_site.settings.data / "objects" / ACME / job.id / "clip-1.mp4").read_bytes()
    assert stored.startswith(b"FGO1")
    assert make_mp4()[:16] not in stored


def test_a_provider_job_has_progress_and_stages(managed_site, bedrock):
    bedrock.seconds = 600.0  # until `finish`
    provider = copy(managed_site.provider)
    provider._settings, provider._models = managed_site.settings.provider.model_copy(update=SLOW), ()
    job, seen = managed_site.enqueue(), []

    def is_half_done(job):
        return job.progress and 0.05 < job.progress.fraction < 0.9

    with managed_site.worker(provider):
        managed_site.wait_for(job, lambda job: seen.append(job.progress) or is_half_done(job))
        bedrock.finish()
        managed_site.wait_for(job, lambda job: seen.append(job.progress) or job.state.is_final)
    fractions = [progress.fraction for progress in seen if progress]
    assert fractions == sorted(fractions)
    stages = [event.stage for event in managed_site.reader.events(ACME, job.id) if event.stage]
    assert stages[0] is Stage.DENOISE


def test_many_jobs_wait_on_few_threads(managed_site, bedrock):
    bedrock.seconds, bedrock.clip = 600.0, b"not a video"  # until `finish`
    jobs = [managed_site.enqueue(seed=number) for number in range(30)]
    with managed_site.worker(threads=3, max_jobs=30) as worker:
        wait_until(lambda: len(bedrock.paid) == 30)
        assert len(worker._jobs) == 30
        names = [thread.name for thread in threading.enumerate() if thread.name.startswith("managed")]
        assert len(names) == 4, "three for calls, one for heartbeats"
        bedrock.finish()
        assert all(managed_site.wait_for(job).state is JobState.COMPLETED for job in jobs)
    assert sorted(bedrock.starts) == sorted(job.id for job in jobs), "each was started once"


def test_no_more_jobs_are_leased_than_the_provider_renders_at_once(managed_site, bedrock):
    bedrock.seconds = 600.0
    for number in range(5):
        managed_site.enqueue(seed=number)
    with managed_site.worker(max_jobs=2) as worker:
        wait_until(lambda: bedrock.polls >= 10)  # by then the worker could have leased the other jobs
        assert (len(worker._jobs), len(bedrock.paid)) == (2, 2)


class WokenQueue:
    """A queue whose `wait` blocks until `wake` is set. Records the calls of `lease` and `wait`."""

    def __init__(self, queue):
        self._queue, self.wake, self.calls = queue, threading.Event(), []

    def __getattr__(self, name):
        return getattr(self._queue, name)

    def lease(self, offer):
        self.calls.append("lease")
        return self._queue.lease(offer)

    def wait(self, offer, is_stopping):
        self.calls.append("wait")
        wait_until(lambda: self.wake.is_set() or is_stopping())


def test_an_idle_worker_waits_for_the_waker_instead_of_polling(managed_site):
    queue = WokenQueue(managed_site.services.queue)
    managed_site.services = replace(managed_site.services, queue=queue)
    with managed_site.worker():
        wait_until(lambda: "wait" in queue.calls)
        job = managed_site.enqueue()
        queue.wake.set()
        assert managed_site.wait_for(job).state is JobState.COMPLETED
    assert queue.calls[:3] == ["lease", "wait", "lease"]


def test_an_idle_worker_pauses_after_a_failed_lease(managed_site, monkeypatch):
    queue = WokenQueue(managed_site.services.queue)
    queue.wake.set()  # `wait` returns at once
    managed_site.services = replace(managed_site.services, queue=queue)
    lease, failures = queue._queue.lease, iter(range(3))

    def fail(offer):
        if next(failures, None) is not None:
            raise QueueUnavailable("down")
        return lease(offer)

    monkeypatch.setattr(queue._queue, "lease", fail)
    job = managed_site.enqueue()
    with managed_site.worker():
        assert managed_site.wait_for(job).state is JobState.COMPLETED
    assert queue.calls[:4] == ["lease"] * 4, "the worker paused without the waker"


def test_a_cancelled_job_is_cancelled_at_the_provider(tmp_path):
    with (
        second_filmgate(tmp_path / "slow", pace_seconds=0.5) as slow,
        open_managed_site(tmp_path / "first", endpoint_settings(slow)) as site,
        site.worker(),
    ):
        job = site.enqueue()
        site.wait_for(job, lambda job: job.has_started)
        site.services.queue.cancel(ACME, job.id)
        ended = site.wait_for(job)
        assert ended.failure.reason is Reason.CANCELLED
        with slow.client() as client:
            wait_until(lambda: client.get("/v1/videos").json()["data"][0]["status"] == "failed")


def test_the_clip_of_a_cancelled_job_is_deleted_at_bedrock_when_it_is_finished(
    managed_site, bedrock, clip_bucket
):
    bedrock.seconds = 600.0  # until `finish`: the clip must not be ready before the cancellation
    job = managed_site.enqueue()
    with managed_site.worker():
        managed_site.wait_for(job, lambda job: job.has_started)
        managed_site.services.queue.cancel(ACME, job.id)
        assert managed_site.wait_for(job).failure.reason is Reason.CANCELLED
    sweep = OrphanSweep(managed_site.provider, managed_site.invocations, idle_seconds=0.0)
    assert sweep.run() == 0, "Bedrock cannot cancel: the clip is still being rendered"
    bedrock.finish()
    wait_until(lambda: sweep.run() == 1)
    (invocation,) = bedrock.paid.values()
    assert [key for key in bedrock.files(clip_bucket) if key.startswith(invocation.output[1])] == []
    assert (managed_site.record(job).state, sweep.run()) == (RecordState.CLOSED, 0)


def test_the_copy_of_a_deleted_job_is_deleted_at_the_provider(managed_site, bedrock, clip_bucket):
    bedrock.seconds = 600.0  # until `finish`
    job = managed_site.enqueue()
    with managed_site.worker():
        managed_site.wait_for(job, lambda job: job.has_started)
        managed_site.services.queue.cancel(ACME, job.id)
        managed_site.wait_for(job)
    managed_site.services.queue.remove(ACME, job.id)
    bedrock.finish()
    sweep = OrphanSweep(managed_site.provider, managed_site.invocations, idle_seconds=0.0)
    wait_until(lambda: sweep.run() == 1)
    (invocation,) = bedrock.paid.values()
    assert [key for key in bedrock.files(clip_bucket) if key.startswith(invocation.output[1])] == []
    assert sweep.run() == 0


def test_a_drained_worker_hands_its_job_back_and_the_next_worker_resumes_the_wait(managed_site, bedrock):
    bedrock.seconds = 600.0  # until `finish`
    job = managed_site.enqueue()
    with managed_site.worker() as worker:
        managed_site.wait_for(job, lambda job: job.has_started)
    assert worker.status.is_draining
    returned = managed_site.find(job)
    assert (returned.state, returned.route, returned.attempt) == (JobState.QUEUED, Route.MANAGED, 0)
    assert managed_site.record(job).invocation_id is not None
    bedrock.finish()
    with managed_site.worker():
        assert managed_site.wait_for(job).state is JobState.COMPLETED
    assert bedrock.starts == [job.id]


def add_spec_field(site, job, name, value):
    """Store a field in the job's spec that this version does not know."""
    with site.services.database.write() as connection:
        own = jobs.c.id == job.id
        spec = json.loads(connection.execute(sa.select(jobs.c.spec).where(own)).scalar_one())
        connection.execute(sa.update(jobs).where(own).values(spec=json.dumps(spec | {name: value})))


def test_a_job_with_an_unknown_field_returns_to_the_gpus_which_may_support_it(managed_site, bedrock):
    job = managed_site.enqueue()
    add_spec_field(managed_site, job, "camera", {"move": "orbit"})
    with managed_site.worker():
        returned = managed_site.wait_for(job, lambda job: job.route is Route.GPU)
        assert managed_site.wait_for(managed_site.enqueue(seed=8)).state is JobState.COMPLETED
    assert (returned.state, returned.spec.extra) == (JobState.QUEUED, {"camera": {"move": "orbit"}})
    assert job.id not in bedrock.paid


def test_no_log_contains_the_prompt(managed_site, caplog):
    with caplog.at_level("INFO"), managed_site.worker():
        job = managed_site.enqueue(prompt="zanzibar marmalade")
        managed_site.wait_for(job)
    assert "started at the provider" in caplog.text
    assert "zanzibar" not in caplog.text
