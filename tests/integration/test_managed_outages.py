"""What happens to a job when its provider rejects it, fails, or cannot be reached."""

from copy import copy

import pytest
import sqlalchemy as sa

from filmgate.database.backup import end_leases
from filmgate.database.schema import breakers
from filmgate.errors import ProviderError, ProviderUnusable, QueueUnavailable
from filmgate.jobs import JobState, ManagedPolicy, Route, RouteReason
from filmgate.providers import open_provider
from filmgate.providers.breaker import Breaker
from filmgate.providers.circuit import Outcome, Phase, Signal
from filmgate.providers.invocations import RecordState, SqlInvocations
from filmgate.providers.managed import download
from filmgate.scheduling.base import Offer
from filmgate.scheduling.queue import SqlQueue
from filmgate.settings import ProviderSettings, RoutingSettings
from filmgate.worker import publisher
from filmgate.worker_process import build_managed_worker
from tests.fake_bedrock import make_mp4
from tests.managed_site import open_managed_site
from tests.tickets import PROMPT
from tests.waiting import wait_until

OTHER_PROVIDER = ProviderSettings(kind="http", url="http://127.0.0.1:9/v1")


def test_a_job_that_fails_at_the_provider_returns_to_our_gpus_without_using_an_attempt(managed_site, bedrock):
    bedrock.outcome = "Failed"
    job = managed_site.enqueue()
    with managed_site.worker():
        returned = managed_site.wait_for(job, lambda job: job.route is Route.GPU)
    assert (returned.state, returned.attempt, returned.routing.reason) == (
        JobState.QUEUED,
        0,
        RouteReason.RETURNED,
    )
    assert (returned.routing.changes, returned.routing.usd) == ((), None)
    assert managed_site.record(job).state is RecordState.FAILED
    assert managed_site.services.queue.lease(Offer("gpu", ("pattern",))).job.id == job.id


@pytest.mark.parametrize("code", ["throttle", "quota"])
def test_a_job_returns_to_our_gpus_when_the_provider_has_no_capacity(managed_site, bedrock, code):
    bedrock.start_error = code
    job = managed_site.enqueue()
    with managed_site.worker(start_retry_seconds=0.0):
        returned = managed_site.wait_for(job, lambda job: job.route is Route.GPU)
    assert (returned.state, returned.routing.reason) == (JobState.QUEUED, RouteReason.PROVIDER_UNHEALTHY)
    assert managed_site.record(job) is None, "the intent was withdrawn: the job may be sent again"
    assert bedrock.paid == {}


def test_a_throttled_start_is_retried_and_billed_once(managed_site, bedrock):
    bedrock.start_error = "throttle"
    job = managed_site.enqueue()
    with managed_site.worker():
        wait_until(lambda: len(bedrock.starts) >= 2)
        bedrock.start_error = None
        assert managed_site.wait_for(job).state is JobState.COMPLETED
    assert len(bedrock.paid) == 1


@pytest.mark.parametrize("code", ["invalid", "gone", "denied"])
def test_a_job_returns_to_our_gpus_at_once_when_a_retry_cannot_help(managed_site, bedrock, code):
    bedrock.start_error = code
    job = managed_site.enqueue()
    with managed_site.worker():
        returned = managed_site.wait_for(job, lambda job: job.route is Route.GPU)
    assert (returned.state, len(bedrock.starts)) == (JobState.QUEUED, 1)
    assert PROMPT not in returned.routing.detail
    assert "quote" not in returned.routing.detail


def test_a_start_without_a_response_is_retried_and_billed_once(managed_site, bedrock):
    bedrock.is_silent = True
    job = managed_site.enqueue()
    with managed_site.worker(timeout_seconds=1.0):
        wait_until(lambda: len(bedrock.starts) >= 2)
        bedrock.is_silent = False
        assert managed_site.wait_for(job).state is JobState.COMPLETED
    assert (len(bedrock.paid), set(bedrock.starts)) == (1, {job.id})


def test_a_start_without_a_response_is_adopted_by_the_next_worker_although_the_breaker_is_open(
    managed_site, bedrock, monkeypatch
):
    bedrock.is_silent = True
    job, database, refusals = managed_site.enqueue(), managed_site.services.database, []
    with managed_site.worker(timeout_seconds=1.0):
        wait_until(lambda: bedrock.paid)
    bedrock.is_silent = False
    Breaker(database, "bedrock", RoutingSettings(open_seconds=300)).record(Outcome(Signal.UNUSABLE))
    admit = Breaker.admit

    def count_refusals(self, *, is_retry=False):
        permit = admit(self, is_retry=is_retry)
        if permit is None:
            refusals.append(is_retry)
        return permit

    monkeypatch.setattr(Breaker, "admit", count_refusals)
    with managed_site.worker():
        wait_until(lambda: len(refusals) >= 2 or managed_site.find(job).route is Route.GPU)
        with database.write() as connection:
            connection.execute(sa.delete(breakers))  # the breaker is closed again
        done = managed_site.wait_for(job, lambda job: job.state.is_final or job.route is Route.GPU)
    assert (done.state, done.route) == (JobState.COMPLETED, Route.MANAGED)
    assert len(bedrock.paid) == 1


def test_a_start_whose_id_cannot_be_recorded_is_not_repeated(managed_site, bedrock, monkeypatch):
    left, set_invocation = 3, SqlInvocations.set_invocation

    def set_after_an_outage(self, job_id, invocation_id):
        nonlocal left
        left -= 1
        if left > 0:
            raise QueueUnavailable("down")
        set_invocation(self, job_id, invocation_id)

    monkeypatch.setattr(SqlInvocations, "set_invocation", set_after_an_outage)
    job = managed_site.enqueue()
    with managed_site.worker():
        assert managed_site.wait_for(job).state is JobState.COMPLETED
    assert (bedrock.starts, left) == ([job.id], 0)


def test_a_drain_ends_although_the_database_is_down(managed_site, bedrock, monkeypatch):
    bedrock.seconds = 600.0  # until `finish`
    jobs = [managed_site.enqueue(seed=seed) for seed in range(3)]

    def fail(self, lease, failed):
        raise QueueUnavailable("down")

    with managed_site.worker() as worker, monkeypatch.context() as outage:
        for job in jobs:
            managed_site.wait_for(job, lambda job: job.has_started)
        outage.setattr(publisher, "_HAND_BACK_SECONDS", 0.0)
        outage.setattr(SqlQueue, "fail_attempt", fail)
        worker.drain()
        worker.thread.join(60)
        assert not worker.thread.is_alive()
    assert {managed_site.find(job).state for job in jobs} == {JobState.RUNNING}
    end_leases(managed_site.services.database)  # as time does
    bedrock.finish()
    with managed_site.worker():
        assert {managed_site.wait_for(job).state for job in jobs} == {JobState.COMPLETED}
    assert len(bedrock.paid) == 3


def test_a_second_drain_does_not_extend_the_first(managed_site):
    services, settings = managed_site.services, managed_site.settings
    worker = build_managed_worker(services, settings, ("pattern",), managed_site.provider)
    worker.drain()
    ends_at = worker._services.publisher.ends_at
    worker.drain()
    assert worker._services.publisher.ends_at == ends_at


def test_a_started_job_waits_through_an_outage_of_the_provider(managed_site, bedrock):
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


def test_a_worker_waits_for_a_provider_that_is_down_at_its_start(managed_site, bedrock):
    bedrock.model_error = "broken"
    job = managed_site.enqueue()
    provider = copy(managed_site.provider)
    provider._models = ()
    with managed_site.worker(provider):
        wait_until(lambda: bedrock.model_requests >= 2)
        managed_site.wait_for(job, lambda job: job.state is JobState.RUNNING)
        bedrock.model_error = "denied"
        assert managed_site.wait_for(job).state is JobState.COMPLETED


def test_a_model_past_its_end_of_life_ends_the_worker(managed_site, bedrock):
    bedrock.model_error, bedrock.end_of_life = None, "2026-09-30T00:00:00Z"
    worker = build_managed_worker(
        managed_site.services, managed_site.settings, ("pattern",), managed_site.provider
    )
    with pytest.raises(ProviderUnusable, match="2026-09-30"):
        worker.run()


def test_a_job_returns_to_our_gpus_when_the_provider_stays_unreachable(managed_site, bedrock):
    bedrock.model_error = "broken"
    job = managed_site.enqueue()
    provider = copy(managed_site.provider)
    provider._models = ()
    with managed_site.worker(provider, start_retry_seconds=0.2):
        returned = managed_site.wait_for(job, lambda job: job.route is Route.GPU)
    assert (returned.state, returned.routing.reason) == (JobState.QUEUED, RouteReason.PROVIDER_UNHEALTHY)
    assert (managed_site.record(job), bedrock.starts) == (None, [])


def test_a_job_at_a_provider_that_is_no_longer_configured_returns_to_our_gpus(managed_site, bedrock):
    bedrock.seconds = 60
    job = managed_site.enqueue()
    with managed_site.worker():
        managed_site.wait_for(job, lambda job: job.has_started)
    with managed_site.worker(open_provider(OTHER_PROVIDER)):
        returned = managed_site.wait_for(job, lambda job: job.route is Route.GPU)
    assert (returned.routing.detail, managed_site.record(job).state) == (
        "the job was at bedrock before",
        RecordState.FAILED,
    )


def test_a_provider_job_that_exceeds_the_limit_returns_to_our_gpus(managed_site, bedrock):
    bedrock.seconds = 60
    job = managed_site.enqueue()
    with managed_site.worker():
        managed_site.wait_for(job, lambda job: job.has_started)
        managed_site.age(4000)
    with managed_site.worker():
        returned = managed_site.wait_for(job, lambda job: job.route is Route.GPU)
    assert (returned.routing.reason, managed_site.record(job).state) == (
        RouteReason.RETURNED,
        RecordState.FAILED,
    )


def test_an_open_breaker_returns_jobs_without_calling_the_provider(managed_site, bedrock):
    longer_than_the_test = RoutingSettings(open_seconds=300)
    breaker = Breaker(managed_site.services.database, "bedrock", longer_than_the_test)
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
    assert len(bedrock.starts) < 12, "later jobs did not call the provider"


def test_a_change_that_the_tenant_forbids_returns_the_job_before_a_start(tmp_path, bedrock, rented):
    policy = ManagedPolicy(is_allowed=True)
    with open_managed_site(tmp_path, rented[1], policy, rented[2]) as site, site.worker():
        job = site.enqueue()
        returned = site.wait_for(job, lambda job: job.route is Route.GPU)
        assert "does not allow" in returned.routing.detail
        assert (bedrock.starts, site.record(job)) == ([], None)


def test_an_interrupted_download_is_repeated(managed_site, bedrock):
    provider, broken = copy(managed_site.provider), []
    fetch = provider.fetch

    def fetch_until_cut(invocation_id):
        for chunk in fetch(invocation_id):
            yield chunk
            if not broken:
                broken.append(invocation_id)
                raise ProviderError("the connection was lost")

    provider.fetch = fetch_until_cut
    job = managed_site.enqueue()
    with managed_site.worker(provider):
        done = managed_site.wait_for(job)
    assert (done.state, done.attempt) == (JobState.COMPLETED, 1)
    assert managed_site.read(job, done.clip.part) == make_mp4()


def test_a_clip_that_is_too_large_is_rejected_and_nothing_is_stored(managed_site, bedrock, monkeypatch):
    monkeypatch.setattr(download, "MAX_CLIP_BYTES", 100)
    job = managed_site.enqueue()
    with managed_site.worker():
        returned = managed_site.wait_for(job, lambda job: job.route is Route.GPU)
    assert returned.routing.detail == "the provider's clip has more than 100 bytes"
    assert managed_site.parts(job) == []
