"""The steps of a provider job: a start that may have happened, its measured duration, and its end."""

from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest

from filmgate.errors import (
    ProviderCannot,
    ProviderError,
    ProviderRefused,
    ProviderThrottled,
    ProviderUnusable,
    QueueUnavailable,
)
from filmgate.jobs import InvocationId, JobId, Lease, ManagedPolicy, RouteReason, WorkerId
from filmgate.providers.base import Invocation, InvocationState
from filmgate.providers.invocations import InvocationRecord, RecordState
from filmgate.providers.managed import provider_job
from filmgate.providers.managed.guarded import BreakerOpen
from filmgate.providers.managed.provider_job import ManagedServices, ProviderJob
from filmgate.settings import ProviderSettings
from filmgate.telemetry.logs import Log
from tests.fake_provider import MODEL, FakeProvider
from tests.tickets import RESULT, make_ticket, queued_job

INTENT = InvocationRecord(JobId("video_1"), "elsewhere", RecordState.OPEN, age_seconds=100.0)
OPEN = BreakerOpen("the provider's breaker is open")
BROKEN = ProviderError("no answer")
REEL = replace(MODEL, seconds=(6.0, 12.0), expected_seconds=90.0)


@dataclass
class Invocations:
    """The record of one job."""

    record: InvocationRecord | None = None

    def find(self, job_id):
        return self.record

    def begin(self, lease, provider, routing):
        self.record = InvocationRecord(lease.job.id, provider, RecordState.OPEN)
        return self.record

    def set_invocation(self, job_id, invocation_id):
        self.record = replace(self.record, invocation_id=invocation_id)

    def withdraw(self, lease):
        self.record = None

    def fail(self, lease):
        self.record = replace(self.record, state=RecordState.FAILED)

    def set_state(self, job_id, state):
        self.record = replace(self.record, state=state)


@dataclass
class Guarded:
    """Makes every call, and keeps the observed durations. The next starts raise `errors`."""

    observed: list = field(default_factory=list)
    errors: list = field(default_factory=list)

    def start(self, call, *, is_retry):
        if self.errors:
            raise self.errors.pop(0)
        return call()

    def is_open(self):
        return True

    def poll(self, call):
        return call()

    def observe(self, seconds, expected_seconds):
        self.observed.append((seconds, expected_seconds))


@dataclass
class Publisher:
    """Completes every job, and keeps the routing of those that return to local GPUs."""

    returned: list = field(default_factory=list)

    def complete(self, lease, result, log):
        return lease.job

    def fail_attempt(self, lease, failed):
        self.returned.append(failed.routing.reason)
        return lease.job


@pytest.fixture
def clock(monkeypatch):
    """The monotonic clock; the wall clock of the host is hours ahead of the database."""
    now = SimpleNamespace(time=1000.0)
    clocks = SimpleNamespace(time=lambda: now.time + 10_000.0, monotonic=lambda: now.time)
    monkeypatch.setattr(provider_job, "time", clocks)
    return now


@pytest.fixture
def services():
    return ManagedServices(
        provider=FakeProvider(REEL),
        invocations=Invocations(),
        guarded=Guarded(),
        store=SimpleNamespace(),
        publisher=Publisher(),
        downloader=SimpleNamespace(download=lambda lease, invocation_id, check: RESULT),
        policy_of=lambda tenant_id: ManagedPolicy(is_allowed=True),
        settings=ProviderSettings(expected_seconds=30.0),
    )


def lease_of(seconds):
    job = queued_job(make_ticket(seconds=seconds), now=0.0)
    return Lease(replace(job, id=JobId("video_1")), WorkerId("managed"), fence=1, seconds=30.0)


def test_a_long_clip_that_takes_as_long_as_stated_does_not_slow_the_pace(services, clock):
    job = ProviderJob(lease_of(12.0), services, Log("worker"))
    job.step()
    clock.time += 180.0
    assert job.step() is None
    assert services.guarded.observed == [(180.0, 180.0)]


def test_the_estimated_progress_of_a_long_clip_follows_its_own_length(services, clock):
    job = ProviderJob(lease_of(12.0), services, Log("worker"))
    job.step()
    clock.time += 90.0
    assert job.progress().fraction == pytest.approx(0.5 * 0.95)


def test_a_resumed_job_is_not_compared_with_another_duration(services, clock):
    services.invocations.record = InvocationRecord(
        JobId("video_1"), "elsewhere", RecordState.OPEN, age_seconds=100.0, invocation_id=InvocationId("one")
    )
    job = ProviderJob(lease_of(12.0), services, Log("worker"))
    job.step()
    assert job.step() is None
    assert services.invocations.record.state is RecordState.CLOSED
    assert services.guarded.observed == []


@pytest.mark.parametrize(("age_seconds", "is_cancelled"), [(3599.0, False), (3601.0, True)])
def test_a_resumed_job_is_cancelled_after_the_limit_whatever_the_clock_of_the_host(
    services, clock, age_seconds, is_cancelled
):
    services.invocations.record = replace(INTENT, age_seconds=age_seconds, invocation_id=InvocationId("one"))
    services.provider.poll = lambda invocation_id: Invocation(invocation_id, InvocationState.PENDING)
    job = ProviderJob(lease_of(6.0), services, Log("worker"))
    job.step()
    assert (job.step() is None, services.publisher.returned != []) == (is_cancelled, is_cancelled)


def test_an_unexpected_error_after_the_end_of_the_job_does_not_fail_it_which_would_delete_its_clip(services):
    def discard(invocation_id):
        raise KeyError("outputDataConfig")

    services.provider.discard = discard
    failed = []
    services.publisher.end_with_error = lambda lease, error, log: failed.append(error)
    job = ProviderJob(lease_of(6.0), services, Log("worker"))
    job.step()
    assert job.step() is None
    assert failed == []
    assert services.invocations.record.state is RecordState.OPEN


@pytest.mark.parametrize("error", [OPEN, ProviderUnusable("the key has expired")])
def test_a_start_that_an_earlier_worker_may_have_made_is_repeated_although_it_cannot_be_made_now(
    services, clock, error
):
    services.invocations.record = INTENT
    services.guarded.errors = [error] * 3
    job = ProviderJob(lease_of(6.0), services, Log("worker"))
    assert [job.step() is None for _ in range(3)] == [False] * 3
    assert (services.invocations.record is not None, services.publisher.returned) == (True, [])
    job.step()
    assert (services.invocations.record.invocation_id, services.provider.starts) == ("video_1", ["video_1"])


@pytest.mark.parametrize("error", [OPEN, ProviderUnusable("the key has expired")])
def test_a_start_without_an_answer_is_repeated_although_it_cannot_be_made_now(services, clock, error):
    services.guarded.errors = [BROKEN, error]
    job = ProviderJob(lease_of(6.0), services, Log("worker"))
    assert [job.step() is None for _ in range(2)] == [False] * 2
    job.step()
    assert services.invocations.record.invocation_id == "video_1"
    assert services.publisher.returned == []


@pytest.mark.parametrize(
    ("error", "reason"),
    [(OPEN, RouteReason.PROVIDER_UNHEALTHY), (ProviderUnusable("expired"), RouteReason.RETURNED)],
)
def test_a_start_that_may_have_happened_is_given_up_after_the_time_for_retries(
    services, clock, error, reason
):
    services.invocations.record = INTENT
    services.guarded.errors = [error] * 2
    job = ProviderJob(lease_of(6.0), services, Log("worker"))
    clock.time += services.settings.start_retry_seconds
    assert job.step() is not None
    clock.time += 1.0
    assert job.step() is None
    assert (services.invocations.record, services.publisher.returned) == (None, [reason])


@pytest.mark.parametrize("earlier", [None, INTENT])
@pytest.mark.parametrize("error", [ProviderRefused("content"), ProviderCannot("no such size")])
def test_a_job_that_the_provider_will_not_render_is_returned_at_once(services, clock, error, earlier):
    services.invocations.record = earlier
    services.guarded.errors = [error]
    assert ProviderJob(lease_of(6.0), services, Log("worker")).step() is None
    assert (services.invocations.record, services.publisher.returned) == (None, [RouteReason.RETURNED])


@pytest.mark.parametrize("error", [OPEN, ProviderUnusable("the key has expired")])
def test_the_intent_of_the_same_worker_is_not_an_earlier_start(services, clock, error):
    services.guarded.errors = [QueueUnavailable("no permit: the database is down"), error]
    job = ProviderJob(lease_of(6.0), services, Log("worker"))
    assert job.step() is not None
    assert services.invocations.record is not None
    assert job.step() is None
    assert (services.invocations.record, len(services.publisher.returned)) == (None, 1)


def test_a_start_that_was_refused_for_certain_leaves_no_intent_to_the_next_worker(services, clock):
    services.guarded.is_open = lambda: False
    services.guarded.errors = [ProviderThrottled("no capacity"), BROKEN, ProviderThrottled("no capacity")]
    job = ProviderJob(lease_of(6.0), services, Log("worker"))
    assert job.step() is not None
    assert services.invocations.record is None
    job.step()
    assert job.step() is not None
    assert services.invocations.record is not None, "the second start may have happened"
