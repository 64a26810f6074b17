"""What becomes of a job when its provider refuses, fails, breaks off or cannot be reached."""

from copy import copy

import pytest

from filmgate.errors import ProviderError, ProviderUnusable
from filmgate.jobs import JobState, ManagedPolicy, Route, RouteReason
from filmgate.providers import open_provider
from filmgate.providers.breaker import Breaker
from filmgate.providers.circuit import Outcome, Phase, Signal
from filmgate.providers.invocations import RecordState
from filmgate.providers.managed import download as delivery
from filmgate.scheduling.base import Offer
from filmgate.settings import ProviderSettings
from filmgate.worker_process import build_managed_worker
from tests.fake_bedrock import make_mp4
from tests.managed_site import open_managed_site
from tests.tickets import PROMPT
from tests.waiting import wait_until

ELSEWHERE = ProviderSettings(provider="http", url="http://127.0.0.1:9/v1")


def test_a_job_that_fails_over_there_comes_home_and_loses_nothing(managed_site, bedrock):
    bedrock.outcome = "Failed"
    job = managed_site.enqueue()
    with managed_site.worker():
        home = managed_site.wait_for(job, lambda job: job.route is Route.GPU)
    assert (home.state, home.attempt, home.routing.reason) == (JobState.QUEUED, 0, RouteReason.RETURNED)
    assert (home.routing.changes, home.routing.usd) == ((), None)
    assert managed_site.record(job).state is RecordState.FAILED
    assert managed_site.services.queue.lease(Offer("gpu", ("pattern",))).job.id == job.id


@pytest.mark.parametrize("mood", ["throttle", "quota"])
def test_a_job_the_provider_has_no_room_for_goes_home_when_patience_ends(managed_site, bedrock, mood):
    bedrock.start_error = mood
    job = managed_site.enqueue()
    with managed_site.worker(start_retry_seconds=0.0):
        home = managed_site.wait_for(job, lambda job: job.route is Route.GPU)
    assert (home.state, home.routing.reason) == (JobState.QUEUED, RouteReason.PROVIDER_UNHEALTHY)
    assert managed_site.record(job) is None, "an intent that came to nothing is no reason not to ask again"
    assert bedrock.paid == {}


def test_a_throttled_start_is_tried_again_and_paid_once(managed_site, bedrock):
    bedrock.start_error = "throttle"
    job = managed_site.enqueue()
    with managed_site.worker():
        wait_until(lambda: len(bedrock.starts) >= 2)
        bedrock.start_error = None
        assert managed_site.wait_for(job).state is JobState.COMPLETED
    assert len(bedrock.paid) == 1


@pytest.mark.parametrize("mood", ["invalid", "gone", "denied"])
def test_a_start_that_will_never_do_goes_home_at_once(managed_site, bedrock, mood):
    bedrock.start_error = mood
    job = managed_site.enqueue()
    with managed_site.worker():
        home = managed_site.wait_for(job, lambda job: job.route is Route.GPU)
    assert (home.state, len(bedrock.starts)) == (JobState.QUEUED, 1)
    assert PROMPT not in home.routing.detail
    assert "quote" not in home.routing.detail


def test_a_start_without_an_answer_is_asked_again_and_paid_once(managed_site, bedrock):
    bedrock.answer_seconds = 1.0
    job = managed_site.enqueue()
    with managed_site.worker(timeout_seconds=0.3):
        wait_until(lambda: len(bedrock.starts) >= 2)
        bedrock.answer_seconds = 0.0
        assert managed_site.wait_for(job).state is JobState.COMPLETED
    assert (len(bedrock.paid), set(bedrock.starts)) == (1, {job.id})


def test_a_wait_that_was_paid_for_outlives_an_outage_of_the_provider(managed_site, bedrock):
    bedrock.seconds = 600.0  # until `finish`
    job = managed_site.enqueue()
    with managed_site.worker():
        wait_until(lambda: bedrock.paid)
        bedrock.poll_error, polls = "broken", bedrock.polls
        wait_until(lambda: bedrock.polls >= polls + 3)
        assert managed_site.find(job).state is JobState.RUNNING
        bedrock.finish()
        bedrock.poll_error = None
        assert managed_site.wait_for(job).state is JobState.COMPLETED
    assert bedrock.starts == [job.id]


def test_a_provider_that_is_down_when_the_worker_starts_is_waited_for(managed_site, bedrock):
    bedrock.model_error = "broken"
    job = managed_site.enqueue()
    provider = copy(managed_site.provider)
    provider._offers = ()
    with managed_site.worker(provider):
        wait_until(lambda: bedrock.model_requests >= 2)
        managed_site.wait_for(job, lambda job: job.state is JobState.RUNNING)
        bedrock.model_error = "denied"
        assert managed_site.wait_for(job).state is JobState.COMPLETED


def test_a_model_past_its_end_ends_the_worker(managed_site, bedrock):
    bedrock.model_error, bedrock.end_of_life = None, "2026-09-30T00:00:00Z"
    worker = build_managed_worker(
        managed_site.services, managed_site.settings, ("pattern",), managed_site.provider
    )
    with pytest.raises(ProviderUnusable, match="2026-09-30"):
        worker.run()


def test_a_provider_nobody_can_reach_gives_the_job_back(managed_site, bedrock):
    bedrock.model_error = "broken"
    job = managed_site.enqueue()
    provider = copy(managed_site.provider)
    provider._offers = ()
    with managed_site.worker(provider, start_retry_seconds=0.2):
        home = managed_site.wait_for(job, lambda job: job.route is Route.GPU)
    assert (home.state, home.routing.reason) == (JobState.QUEUED, RouteReason.PROVIDER_UNHEALTHY)
    assert (managed_site.record(job), bedrock.starts) == (None, [])


def test_a_job_that_waits_at_a_provider_we_no_longer_have_is_rendered_at_home(managed_site, bedrock):
    bedrock.seconds = 60
    job = managed_site.enqueue()
    with managed_site.worker():
        managed_site.wait_for(job, lambda job: job.has_started)
    with managed_site.worker(open_provider(ELSEWHERE)):
        home = managed_site.wait_for(job, lambda job: job.route is Route.GPU)
    assert (home.routing.detail, managed_site.record(job).state) == (
        "the job was at bedrock before",
        RecordState.FAILED,
    )


def test_a_provider_job_that_takes_too_long_is_given_up_and_rendered_at_home(managed_site, bedrock):
    bedrock.seconds = 60
    job = managed_site.enqueue()
    with managed_site.worker():
        managed_site.wait_for(job, lambda job: job.has_started)
        managed_site.age(4000)
    with managed_site.worker():
        home = managed_site.wait_for(job, lambda job: job.route is Route.GPU)
    assert (home.routing.reason, managed_site.record(job).state) == (RouteReason.RETURNED, RecordState.FAILED)


def test_an_open_breaker_sends_jobs_home_without_a_call(managed_site, bedrock):
    breaker = Breaker(managed_site.services.database, "bedrock", managed_site.settings.routing)
    breaker.record(Outcome(Signal.UNUSABLE))
    assert breaker.health().phase is Phase.OPEN
    job = managed_site.enqueue()
    with managed_site.worker():
        managed_site.wait_for(job, lambda job: job.route is Route.GPU)
    assert (bedrock.starts, managed_site.record(job)) == ([], None)


def test_throttling_opens_the_breaker(managed_site, bedrock):
    bedrock.start_error = "throttle"
    jobs = [managed_site.enqueue(seed=number) for number in range(12)]
    with managed_site.worker(threads=2):
        for job in jobs:
            managed_site.wait_for(job, lambda job: job.route is Route.GPU)
    assert (
        Breaker(managed_site.services.database, "bedrock", managed_site.settings.routing).health().phase
        is Phase.OPEN
    )
    assert len(bedrock.starts) < 12, "those that came later did not ask"


def test_what_the_tenant_does_not_allow_goes_home_before_anyone_is_asked(tmp_path, bedrock, rented):
    policy = ManagedPolicy(is_allowed=True)
    with open_managed_site(tmp_path, rented[1], policy, rented[2]) as site, site.worker():
        job = site.enqueue()
        home = site.wait_for(job, lambda job: job.route is Route.GPU)
        assert "does not allow" in home.routing.detail
        assert (bedrock.starts, site.record(job)) == ([], None)


def test_a_download_that_breaks_off_is_taken_up_again(managed_site, bedrock):
    provider, broken = copy(managed_site.provider), []
    fetch = provider.fetch

    def stumble(invocation_id):
        for chunk in fetch(invocation_id):
            yield chunk
            if not broken:
                broken.append(invocation_id)
                raise ProviderError("the line went dead")

    provider.fetch = stumble
    job = managed_site.enqueue()
    with managed_site.worker(provider):
        done = managed_site.wait_for(job)
    assert (done.state, done.attempt) == (JobState.COMPLETED, 1)
    assert managed_site.read(job, done.clip.part) == make_mp4()


def test_a_clip_without_end_is_cut_off_and_leaves_no_trace(managed_site, bedrock, monkeypatch):
    monkeypatch.setattr(delivery, "MOST_CLIP_BYTES", 100)
    job = managed_site.enqueue()
    with managed_site.worker():
        home = managed_site.wait_for(job, lambda job: job.route is Route.GPU)
    assert home.routing.detail == "the provider's clip has more than 100 bytes"
    assert managed_site.parts(job) == []
