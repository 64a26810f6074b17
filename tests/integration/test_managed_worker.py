"""The managed worker with its real parts: SQLite, encrypted files, a second Filmgate or Bedrock over HTTP."""

import threading

import pytest

from filmgate.jobs import JobState, Reason, Route, RouteReason, Stage
from filmgate.providers.invocations import RecordState
from filmgate.providers.managed.orphans import LeftoverSweep
from filmgate.worker.pattern_runner import pattern_clip
from tests.fake_bedrock import make_mp4
from tests.managed_site import ACME, open_managed_site
from tests.second_filmgate import endpoint_settings, second_filmgate
from tests.waiting import wait_until

JPEG = b"\xff\xd8\xff"


@pytest.fixture(scope="module")
def second(tmp_path_factory):
    with second_filmgate(tmp_path_factory.mktemp("second"), pace_seconds=0.005) as service:
        yield service


@pytest.fixture
def site(tmp_path, second):
    with open_managed_site(tmp_path / "site", endpoint_settings(second)) as site:
        yield site


def left_over_there(second):
    with second.client() as client:
        return [video["id"] for video in client.get("/v1/videos").json()["data"]]


def test_a_job_comes_back_as_the_clip_our_own_gpu_would_have_made(site, second):
    job = site.enqueue()
    with site.worker():
        done = site.wait_for(job)
        wait_until(lambda: site.record(job).state is RecordState.CLOSED)
    assert (done.state, done.device, done.attempt) == (JobState.COMPLETED, "managed:http", 1)
    assert site.read(job, done.clip.part) == pattern_clip(job.spec)
    assert done.measured.gpu_seconds == 0.0, "no GPU-second of ours went into it"
    assert left_over_there(second) == []


def test_the_job_says_where_it_was_made_and_what_changed(managed_site):
    job = managed_site.enqueue()
    with managed_site.worker():
        done = managed_site.wait_for(job)
    assert (done.routing.provider, done.routing.offer, done.routing.usd) == ("bedrock", "luma.ray-v2:0", 3.75)
    assert done.routing.changes == (
        "model pattern -> luma.ray-v2:0",
        "size 128x128 -> 540x540",
        "length 2 s -> 5 s",
        "fps 16 -> 24",
        "seed left out",
    )
    assert (done.routing.reason, done.routing.detail) == (RouteReason.DEADLINE, "the wait is too long")


def test_a_clip_of_bedrock_gets_its_stills_and_leaves_the_bucket(managed_site, bedrock, clip_bucket):
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
def test_on_postgresql_it_is_the_same(tmp_path, rented, bedrock, database_url):
    with open_managed_site(tmp_path, rented[1], provider=rented[2], database_url=database_url) as site:
        bedrock.start_error = "throttle"
        job = site.enqueue()
        with site.worker():
            wait_until(lambda: bedrock.starts)
            bedrock.start_error = None
            assert site.wait_for(job).state is JobState.COMPLETED
            wait_until(lambda: site.record(job).state is RecordState.CLOSED)
    assert list(bedrock.paid) == [job.id]


def test_a_clip_that_cannot_be_decoded_is_delivered_without_stills(site):
    job = site.enqueue()
    with site.worker():
        done = site.wait_for(job)
    assert (done.clip.thumbnail, done.clip.spritesheet) == (None, None)
    assert site.parts(job) == ["clip-1.mp4"]


def test_what_lies_in_the_store_is_sealed_with_the_tenants_key(managed_site):
    job = managed_site.enqueue()
    with managed_site.worker():
        managed_site.wait_for(job)
    stored = (managed_site.settings.data / "objects" / ACME / job.id / "clip-1.mp4").read_bytes()
    assert stored.startswith(b"FGO1")
    assert b"ftyp" not in stored


def test_a_client_sees_an_ordinary_job_with_progress(managed_site, bedrock):
    bedrock.seconds = 0.6
    job, seen = managed_site.enqueue(), []
    with managed_site.worker():
        managed_site.wait_for(job, lambda job: seen.append(job.progress) or job.state.is_final)
    fractions = [progress.fraction for progress in seen if progress]
    assert fractions == sorted(fractions)
    assert any(0.05 < fraction < 0.9 for fraction in fractions)
    stages = [event.stage for event in managed_site.reader.events(ACME, job.id) if event.stage]
    assert stages[0] is Stage.DENOISE


def test_many_jobs_wait_with_few_threads(managed_site, bedrock):
    bedrock.seconds, bedrock.clip = 60.0, b"not really a clip"
    jobs = [managed_site.enqueue(seed=number) for number in range(30)]
    with managed_site.worker(threads=3, max_jobs=30) as worker:
        wait_until(lambda: len(bedrock.paid) == 30)
        assert worker.held == 30
        ours = [thread.name for thread in threading.enumerate() if thread.name.startswith("managed")]
        assert len(ours) == 4, "three that call, one that beats"
        bedrock.finish()
        assert all(managed_site.wait_for(job).state is JobState.COMPLETED for job in jobs)
    assert sorted(bedrock.starts) == sorted(job.id for job in jobs), "each started once"


def test_no_more_is_leased_than_the_provider_takes_at_once(managed_site, bedrock):
    bedrock.seconds = 600.0
    for number in range(5):
        managed_site.enqueue(seed=number)
    with managed_site.worker(max_jobs=2) as worker:
        wait_until(lambda: bedrock.polls >= 10)  # by then the worker could have leased the other jobs
        assert (worker.held, len(bedrock.paid)) == (2, 2)


def test_a_cancelled_job_is_cancelled_over_there_too(tmp_path):
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


def test_a_cancelled_job_leaves_nothing_at_bedrock_in_the_end(managed_site, bedrock, clip_bucket):
    bedrock.seconds = 600.0  # until `finish`: the clip must not be ready before the cancel is
    job = managed_site.enqueue()
    with managed_site.worker():
        managed_site.wait_for(job, lambda job: job.has_started)
        managed_site.services.queue.cancel(ACME, job.id)
        assert managed_site.wait_for(job).failure.reason is Reason.CANCELLED
    sweep = LeftoverSweep(managed_site.provider, managed_site.invocations, idle_seconds=0.0)
    assert sweep.sweep() == 0, "Bedrock cannot cancel: the clip is still being made"
    bedrock.finish()
    wait_until(lambda: sweep.sweep() == 1)
    (invocation,) = bedrock.paid.values()
    assert [key for key in bedrock.files(clip_bucket) if key.startswith(invocation.place[1])] == []
    assert (managed_site.record(job).state, sweep.sweep()) == (RecordState.CLOSED, 0)


def test_a_drained_worker_hands_back_and_the_next_one_goes_on_waiting(managed_site, bedrock):
    bedrock.seconds = 1.0
    job = managed_site.enqueue()
    with managed_site.worker():
        managed_site.wait_for(job, lambda job: job.has_started)
    back = managed_site.find(job)
    assert (back.state, back.route, back.attempt) == (JobState.QUEUED, Route.MANAGED, 0)
    assert managed_site.record(job).invocation_id is not None
    with managed_site.worker():
        assert managed_site.wait_for(job).state is JobState.COMPLETED
    assert bedrock.starts == [job.id]


def test_no_log_holds_the_prompt(managed_site, caplog):
    with caplog.at_level("INFO"), managed_site.worker():
        job = managed_site.enqueue(prompt="zanzibar marmalade")
        managed_site.wait_for(job)
    assert "started at the provider" in caplog.text
    assert "zanzibar" not in caplog.text
