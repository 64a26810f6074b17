"""The managed worker with its real parts: SQLite, encrypted files, a second Filmgate or Bedrock over HTTP."""

import threading
import time
from copy import copy

import pytest

from filmgate.errors import ProviderError, ProviderUnusable
from filmgate.fallback import open_provider
from filmgate.jobs import JobState, ManagedPolicy, Reason, Route, RouteReason, Stage
from filmgate.queue.base import Offer
from filmgate.queue.invocations import RecordState
from filmgate.routing.breaker import Breaker
from filmgate.routing.circuit import Outcome, Phase, Signal
from filmgate.work import build_managed_worker
from filmgate.worker.managed.leftovers import LeftoverSweep
from filmgate.worker.pattern import pattern_clip
from tests.bedrock import Bedrock, make_mp4
from tests.managed import ACME, fallback_to_bedrock, open_office
from tests.second import fallback_to, second_filmgate
from tests.tickets import PROMPT

JPEG = b"\xff\xd8\xff"


@pytest.fixture(scope="module")
def second(tmp_path_factory):
    with second_filmgate(tmp_path_factory.mktemp("second"), pace_seconds=0.005) as service:
        yield service


@pytest.fixture
def office(tmp_path, second):
    with open_office(tmp_path / "office", fallback_to(second)) as office:
        yield office


@pytest.fixture(scope="module")
def cloud(moto, clip_bucket):
    """Bedrock, and a provider that calls it: boto3 takes a while to build its clients."""
    bedrock = Bedrock(moto)
    fallback = fallback_to_bedrock(bedrock, moto, clip_bucket, expected_seconds=2.0)
    yield bedrock, fallback, open_provider(fallback)
    bedrock.close()


@pytest.fixture
def bedrock(cloud):
    cloud[0].reset()
    return cloud[0]


@pytest.fixture
def bank(tmp_path, bedrock, cloud):
    with open_office(tmp_path, cloud[1], provider=cloud[2]) as office:
        yield office


def left_over_there(second):
    with second.client() as client:
        return [video["id"] for video in client.get("/v1/videos").json()["data"]]


def test_a_job_comes_back_as_the_clip_our_own_gpu_would_have_made(office, second):
    job = office.enqueue()
    with office.worker():
        done = office.wait_for(job)
        office.wait_until(lambda: office.record(job).state is RecordState.CLOSED)
    assert (done.state, done.device, done.attempt) == (JobState.COMPLETED, "managed:http", 1)
    assert office.read(job, done.clip.part) == pattern_clip(job.spec)
    assert done.measured.gpu_seconds == 0.0, "no GPU-second of ours went into it"
    assert left_over_there(second) == []


def test_the_job_says_where_it_was_made_and_what_changed(bank):
    job = bank.enqueue()
    with bank.worker():
        done = bank.wait_for(job)
    assert (done.routing.provider, done.routing.offer, done.routing.usd) == ("bedrock", "luma.ray-v2:0", 3.75)
    assert done.routing.changes == (
        "model pattern -> luma.ray-v2:0",
        "size 128x128 -> 540x540",
        "length 2 s -> 5 s",
        "fps 16 -> 24",
        "seed left out",
    )
    assert (done.routing.reason, done.routing.detail) == (RouteReason.DEADLINE, "the wait is too long")


def test_a_clip_of_bedrock_gets_its_stills_and_leaves_the_bucket(bank, bedrock, clip_bucket):
    job = bank.enqueue()
    with bank.worker():
        done = bank.wait_for(job)
        bank.wait_until(lambda: bank.record(job).state is RecordState.CLOSED)
    assert bank.read(job, done.clip.part) == make_mp4()
    assert bank.read(job, done.clip.thumbnail).startswith(JPEG)
    assert bank.read(job, done.clip.spritesheet).startswith(JPEG)
    assert bedrock.files(clip_bucket) == []
    assert len(bedrock.paid) == 1


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_on_postgresql_it_is_the_same(tmp_path, cloud, bedrock, database_url):
    with open_office(tmp_path, cloud[1], provider=cloud[2], database_url=database_url) as office:
        bedrock.start_mood = "throttle"
        job = office.enqueue()
        with office.worker():
            office.wait_until(lambda: bedrock.starts)
            bedrock.start_mood = None
            assert office.wait_for(job).state is JobState.COMPLETED
            office.wait_until(lambda: office.record(job).state is RecordState.CLOSED)
    assert list(bedrock.paid) == [job.id]


def test_a_clip_that_cannot_be_decoded_is_delivered_without_stills(office):
    job = office.enqueue()
    with office.worker():
        done = office.wait_for(job)
    assert (done.clip.thumbnail, done.clip.spritesheet) == (None, None)
    assert office.parts(job) == ["clip-1.mp4"]


def test_what_lies_in_the_store_is_sealed_with_the_tenants_key(bank):
    job = bank.enqueue()
    with bank.worker():
        bank.wait_for(job)
    stored = (bank.settings.data / "objects" / ACME / job.id / "clip-1.mp4").read_bytes()
    assert stored.startswith(b"FGO1")
    assert b"ftyp" not in stored


def test_a_client_sees_an_ordinary_job_with_progress(bank, bedrock):
    bedrock.seconds = 0.6
    job, seen = bank.enqueue(), []
    with bank.worker():
        bank.wait_for(job, lambda job: seen.append(job.progress) or job.state.is_final)
    fractions = [progress.fraction for progress in seen if progress]
    assert fractions == sorted(fractions)
    assert any(0.05 < fraction < 0.9 for fraction in fractions)
    stages = [event.stage for event in bank.book.events(ACME, job.id) if event.stage]
    assert stages[0] is Stage.DENOISE


def test_many_jobs_wait_with_few_threads(bank, bedrock):
    bedrock.seconds, bedrock.clip = 60.0, b"not really a clip"
    jobs = [bank.enqueue(seed=number) for number in range(30)]
    with bank.worker(threads=3, max_jobs=30) as worker:
        bank.wait_until(lambda: len(bedrock.paid) == 30)
        assert worker.held == 30
        ours = [thread.name for thread in threading.enumerate() if thread.name.startswith("managed")]
        assert len(ours) == 4, "three that call, one that beats"
        bedrock.finish()
        assert all(bank.wait_for(job).state is JobState.COMPLETED for job in jobs)
    assert sorted(bedrock.starts) == sorted(job.id for job in jobs), "each started once"


def test_no_more_is_leased_than_the_provider_takes_at_once(bank, bedrock):
    bedrock.seconds = 5.0
    for number in range(5):
        bank.enqueue(seed=number)
    with bank.worker(max_jobs=2) as worker:
        bank.wait_until(lambda: len(bedrock.paid) == 2)
        time.sleep(0.3)
        assert (worker.held, len(bedrock.paid)) == (2, 2)


def test_a_cancelled_job_is_cancelled_over_there_too(tmp_path):
    with (
        second_filmgate(tmp_path / "slow", pace_seconds=0.5) as slow,
        open_office(tmp_path / "first", fallback_to(slow)) as office,
        office.worker(),
    ):
        job = office.enqueue()
        office.wait_for(job, lambda job: job.has_started)
        office.stations.queue.cancel(ACME, job.id)
        ended = office.wait_for(job)
        assert ended.failure.reason is Reason.CANCELLED
        with slow.client() as client:
            office.wait_until(lambda: client.get("/v1/videos").json()["data"][0]["status"] == "failed")


def test_a_cancelled_job_leaves_nothing_at_bedrock_in_the_end(bank, bedrock, clip_bucket):
    bedrock.seconds = 0.5
    job = bank.enqueue()
    with bank.worker():
        bank.wait_for(job, lambda job: job.has_started)
        bank.stations.queue.cancel(ACME, job.id)
        assert bank.wait_for(job).failure.reason is Reason.CANCELLED
    sweep = LeftoverSweep(bank.provider, bank.invocations, idle_seconds=0.0)
    bank.wait_until(lambda: sweep.sweep() == 1)
    assert bedrock.files(clip_bucket) == []
    assert (bank.record(job).state, sweep.sweep()) == (RecordState.CLOSED, 0)


def test_a_drained_worker_hands_back_and_the_next_one_goes_on_waiting(bank, bedrock):
    bedrock.seconds = 1.0
    job = bank.enqueue()
    with bank.worker():
        bank.wait_for(job, lambda job: job.has_started)
    back = bank.find(job)
    assert (back.state, back.route, back.attempt) == (JobState.QUEUED, Route.MANAGED, 0)
    assert bank.record(job).invocation_id is not None
    with bank.worker():
        assert bank.wait_for(job).state is JobState.COMPLETED
    assert bedrock.starts == [job.id]


def test_a_job_that_fails_over_there_comes_home_and_loses_nothing(bank, bedrock):
    bedrock.outcome = "Failed"
    job = bank.enqueue()
    with bank.worker():
        home = bank.wait_for(job, lambda job: job.route is Route.GPU)
    assert (home.state, home.attempt, home.routing.reason) == (JobState.QUEUED, 0, RouteReason.RETURNED)
    assert (home.routing.changes, home.routing.usd) == ((), None)
    assert bank.record(job).state is RecordState.FAILED
    assert bank.stations.queue.lease(Offer("gpu", ("pattern",))).job.id == job.id


@pytest.mark.parametrize("mood", ["throttle", "quota"])
def test_a_job_the_provider_has_no_room_for_goes_home_when_patience_ends(bank, bedrock, mood):
    bedrock.start_mood = mood
    job = bank.enqueue()
    with bank.worker(patience_seconds=0.0):
        home = bank.wait_for(job, lambda job: job.route is Route.GPU)
    assert (home.state, home.routing.reason) == (JobState.QUEUED, RouteReason.PROVIDER_UNHEALTHY)
    assert bank.record(job) is None, "an intent that came to nothing is no reason not to ask again"
    assert bedrock.paid == {}


def test_a_throttled_start_is_tried_again_and_paid_once(bank, bedrock):
    bedrock.start_mood = "throttle"
    job = bank.enqueue()
    with bank.worker():
        bank.wait_until(lambda: len(bedrock.starts) >= 2)
        bedrock.start_mood = None
        assert bank.wait_for(job).state is JobState.COMPLETED
    assert len(bedrock.paid) == 1


@pytest.mark.parametrize("mood", ["invalid", "gone", "denied"])
def test_a_start_that_will_never_do_goes_home_at_once(bank, bedrock, mood):
    bedrock.start_mood = mood
    job = bank.enqueue()
    with bank.worker():
        home = bank.wait_for(job, lambda job: job.route is Route.GPU)
    assert (home.state, len(bedrock.starts)) == (JobState.QUEUED, 1)
    assert PROMPT not in home.routing.detail
    assert "quote" not in home.routing.detail


def test_a_start_without_an_answer_is_asked_again_and_paid_once(bank, bedrock):
    bedrock.answer_seconds = 1.0
    job = bank.enqueue()
    with bank.worker(timeout_seconds=0.3):
        bank.wait_until(lambda: len(bedrock.starts) >= 2)
        bedrock.answer_seconds = 0.0
        assert bank.wait_for(job).state is JobState.COMPLETED
    assert (len(bedrock.paid), set(bedrock.starts)) == (1, {job.id})


def test_a_wait_that_was_paid_for_outlives_an_outage_of_the_provider(bank, bedrock):
    bedrock.seconds = 0.2
    job = bank.enqueue()
    with bank.worker():
        bank.wait_until(lambda: bedrock.paid)
        bedrock.poll_mood = "broken"
        time.sleep(1.0)
        assert bank.find(job).state is JobState.RUNNING
        bedrock.poll_mood = None
        assert bank.wait_for(job).state is JobState.COMPLETED
    assert bedrock.starts == [job.id]


def test_a_provider_that_is_down_when_the_worker_starts_is_waited_for(bank, bedrock):
    bedrock.model_mood = "broken"
    job = bank.enqueue()
    provider = copy(bank.provider)
    provider._offers = ()
    with bank.worker(provider):
        time.sleep(0.3)
        assert bank.find(job).state is JobState.RUNNING
        bedrock.model_mood = "denied"
        assert bank.wait_for(job).state is JobState.COMPLETED


def test_a_model_past_its_end_ends_the_worker(bank, bedrock):
    bedrock.model_mood, bedrock.end_of_life = None, "2026-09-30T00:00:00Z"
    worker = build_managed_worker(bank.stations, bank.settings, ("pattern",), bank.provider)
    with pytest.raises(ProviderUnusable, match="2026-09-30"):
        worker.run()


def test_a_provider_nobody_can_reach_gives_the_job_back(bank, bedrock):
    bedrock.model_mood = "broken"
    job = bank.enqueue()
    provider = copy(bank.provider)
    provider._offers = ()
    with bank.worker(provider, patience_seconds=0.2):
        home = bank.wait_for(job, lambda job: job.route is Route.GPU)
    assert (home.state, home.routing.reason) == (JobState.QUEUED, RouteReason.PROVIDER_UNHEALTHY)
    assert (bank.record(job), bedrock.starts) == (None, [])


def test_a_job_that_waits_at_a_provider_we_no_longer_have_is_rendered_at_home(bank, bedrock, office):
    bedrock.seconds = 60
    job = bank.enqueue()
    with bank.worker():
        bank.wait_for(job, lambda job: job.has_started)
    with bank.worker(office.provider):
        home = bank.wait_for(job, lambda job: job.route is Route.GPU)
    assert (home.routing.detail, bank.record(job).state) == (
        "the job was at bedrock before",
        RecordState.FAILED,
    )


def test_a_provider_job_that_takes_too_long_is_given_up_and_rendered_at_home(bank, bedrock):
    bedrock.seconds = 60
    job = bank.enqueue()
    with bank.worker():
        bank.wait_for(job, lambda job: job.has_started)
        bank.age(4000)
    with bank.worker():
        home = bank.wait_for(job, lambda job: job.route is Route.GPU)
    assert (home.routing.reason, bank.record(job).state) == (RouteReason.RETURNED, RecordState.FAILED)


def test_an_open_breaker_sends_jobs_home_without_a_call(bank, bedrock):
    breaker = Breaker(bank.stations.database, "bedrock", bank.settings.routing)
    breaker.record(Outcome(Signal.UNUSABLE))
    assert breaker.health().phase is Phase.OPEN
    job = bank.enqueue()
    with bank.worker():
        bank.wait_for(job, lambda job: job.route is Route.GPU)
    assert (bedrock.starts, bank.record(job)) == ([], None)


def test_throttling_opens_the_breaker(bank, bedrock):
    bedrock.start_mood = "throttle"
    jobs = [bank.enqueue(seed=number) for number in range(12)]
    with bank.worker(threads=2):
        for job in jobs:
            bank.wait_for(job, lambda job: job.route is Route.GPU)
    assert Breaker(bank.stations.database, "bedrock", bank.settings.routing).health().phase is Phase.OPEN
    assert len(bedrock.starts) < 12, "those that came later did not ask"


def test_what_the_tenant_does_not_allow_goes_home_before_anyone_is_asked(tmp_path, bedrock, cloud):
    policy = ManagedPolicy(is_allowed=True)
    with open_office(tmp_path, cloud[1], policy, cloud[2]) as office, office.worker():
        job = office.enqueue()
        home = office.wait_for(job, lambda job: job.route is Route.GPU)
        assert "does not allow" in home.routing.detail
        assert (bedrock.starts, office.record(job)) == ([], None)


def test_a_download_that_breaks_off_is_taken_up_again(bank, bedrock):
    provider, broken = copy(bank.provider), []
    fetch = provider.fetch

    def stumble(invocation_id):
        for chunk in fetch(invocation_id):
            yield chunk
            if not broken:
                broken.append(invocation_id)
                raise ProviderError("the line went dead")

    provider.fetch = stumble
    job = bank.enqueue()
    with bank.worker(provider):
        done = bank.wait_for(job)
    assert (done.state, done.attempt) == (JobState.COMPLETED, 1)
    assert bank.read(job, done.clip.part) == make_mp4()


def test_no_log_holds_the_prompt(bank, caplog):
    with caplog.at_level("INFO"), bank.worker():
        job = bank.enqueue(prompt="zanzibar marmalade")
        bank.wait_for(job)
    assert "started at the provider" in caplog.text
    assert "zanzibar" not in caplog.text
