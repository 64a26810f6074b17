"""The steps of a provider job: its measured duration, and its end."""

from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest

from filmgate.jobs import InvocationId, JobId, Lease, ManagedPolicy, WorkerId
from filmgate.providers.invocations import InvocationRecord, RecordState
from filmgate.providers.managed import provider_job
from filmgate.providers.managed.provider_job import ManagedServices, ProviderJob
from filmgate.settings import ProviderSettings
from filmgate.telemetry.logs import Log
from tests.fake_provider import MODEL, FakeProvider
from tests.tickets import RESULT, make_ticket, queued_job

REEL = replace(MODEL, seconds=(6.0, 12.0), expected_seconds=90.0)


@dataclass
class Invocations:
    """The record of one job."""

    record: InvocationRecord | None = None

    def find(self, job_id):
        return self.record

    def begin(self, lease, provider, routing):
        self.record = InvocationRecord(lease.job.id, provider, RecordState.OPEN, started_at=1000.0)
        return self.record

    def set_invocation(self, job_id, invocation_id):
        self.record = replace(self.record, invocation_id=invocation_id)

    def set_state(self, job_id, state):
        self.record = replace(self.record, state=state)


@dataclass
class Guarded:
    """Makes every call, and keeps the observed durations."""

    observed: list = field(default_factory=list)

    def start(self, call, *, is_retry):
        return call()

    def poll(self, call):
        return call()

    def observe(self, seconds, expected_seconds):
        self.observed.append((seconds, expected_seconds))


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(time=1000.0)
    monkeypatch.setattr(
        provider_job, "time", SimpleNamespace(time=lambda: now.time, monotonic=lambda: now.time)
    )
    return now


@pytest.fixture
def services():
    return ManagedServices(
        provider=FakeProvider(REEL),
        invocations=Invocations(),
        guarded=Guarded(),
        store=SimpleNamespace(),
        publisher=SimpleNamespace(complete=lambda lease, result, log: lease.job),
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
        JobId("video_1"), "elsewhere", RecordState.OPEN, started_at=900.0, invocation_id=InvocationId("one")
    )
    job = ProviderJob(lease_of(12.0), services, Log("worker"))
    job.step()
    assert job.step() is None
    assert services.invocations.record.state is RecordState.CLOSED
    assert services.guarded.observed == []


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
