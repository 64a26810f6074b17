"""kill -9 of the managed worker at every step: the provider bills one job, and the site stores one clip."""

import signal
from dataclasses import replace

import pytest

from filmgate.jobs import JobState, Route, TenantId
from filmgate.providers import open_provider
from filmgate.providers.invocations import RecordState, SqlInvocations
from filmgate.providers.managed.orphans import OrphanSweep
from filmgate.store.base import ObjectName
from filmgate.tenants.base import Tenant
from filmgate.tenants.registry import TenantRegistry
from tests.fake_bedrock import ENVIRON, FakeBedrock, make_mp4
from tests.managed_site import ANYTHING
from tests.pattern_runner import MODEL
from tests.tickets import make_ticket

ACME = TenantId("acme")


@pytest.fixture
def bedrock(moto):
    bedrock = FakeBedrock(moto)
    yield bedrock
    bedrock.close()


@pytest.fixture
def make_managed_site(make_site, bedrock, moto, clip_bucket):
    provider = {
        "KIND": "bedrock",
        "MODEL": "luma.ray-v2:0",
        "REGION": "us-west-2",
        "BUCKET": f"s3://{clip_bucket}/clips",
        "ENDPOINT": bedrock.url,
        "BUCKET_ENDPOINT": moto,
        "POLL_SECONDS": "0.1",
    }
    settings = {f"FILMGATE_PROVIDER__{name}": value for name, value in provider.items()}

    def make(**environ):
        site = make_site(**settings, **ENVIRON, **environ)
        TenantRegistry(site.database).add(Tenant(ACME, managed=ANYTHING))
        return site

    return make


@pytest.fixture
def site(make_managed_site):
    return make_managed_site()


def start_managed(site, step=""):
    return site.start("tests.chaos.managed_worker", step)


def enqueue(site, **spec):
    return site.queue.enqueue(replace(make_ticket(ACME, model=MODEL, **spec), route=Route.MANAGED))


def clips(site, job):
    return [part for part in site.parts(job) if part.startswith("clip")]


def test_a_job_survives_a_kill_at_every_step_and_is_billed_once(make_managed_site, bedrock, clip_bucket):
    site = make_managed_site(FILMGATE_QUEUE__MAX_ATTEMPTS="20", FILMGATE_QUEUE__LEASE_SECONDS="1")
    job = enqueue(site)
    for step in ("intent", "start", "id", "wait", "download", "publish"):
        assert start_managed(site, step).wait(60) == -signal.SIGKILL, step
        assert site.find(job).state is JobState.RUNNING, "its lease has not expired yet"
    site.environ["FILMGATE_QUEUE__LEASE_SECONDS"] = "30"  # a busy machine may be late with a heartbeat
    start_managed(site)
    done = site.wait_for(job)
    assert (done.state, done.attempt, done.fence) == (JobState.COMPLETED, 7, 7)
    # One worker died before it got the response to its start: the second start returns the same job.
    assert (len(bedrock.paid), bedrock.starts) == (1, [job.id] * 2)
    assert b"".join(site.store.read(ObjectName(ACME, job.id, done.clip.part))) == make_mp4()
    site.wait_until(lambda: clips(site, job) == ["clip-7.mp4"])
    site.wait_until(lambda: bedrock.files(clip_bucket) == [])


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("step", "posts"),
    [("intent", 1), ("start", 2), ("id", 1), ("wait", 1), ("download", 1), ("publish", 1)],
)
def test_a_managed_worker_killed_at_any_step_is_billed_once_and_leaves_one_clip(
    site, bedrock, clip_bucket, step, posts
):
    job = enqueue(site)
    assert start_managed(site, step).wait(60) == -signal.SIGKILL
    assert site.find(job).state is JobState.RUNNING, "its lease has not expired yet"
    start_managed(site)
    done = site.wait_for(job)
    assert (done.state, done.attempt, done.fence) == (JobState.COMPLETED, 2, 2)
    assert (len(bedrock.paid), bedrock.starts) == (1, [job.id] * posts)
    assert b"".join(site.store.read(ObjectName(ACME, job.id, done.clip.part))) == make_mp4()
    site.wait_until(lambda: clips(site, job) == ["clip-2.mp4"])
    site.wait_until(lambda: bedrock.files(clip_bucket) == [])


def test_the_sweep_deletes_what_a_worker_killed_after_the_acknowledgement_left(site, bedrock, clip_bucket):
    job, records = enqueue(site), SqlInvocations(site.database)
    assert start_managed(site, "acknowledge").wait(60) == -signal.SIGKILL
    done = site.find(job)
    assert (done.state, clips(site, job)) == (JobState.COMPLETED, ["clip-1.mp4"])
    assert bedrock.files(clip_bucket) != [], "the worker died before it deleted them"
    sweep = OrphanSweep(open_provider(site.settings.provider), records, idle_seconds=0.0)
    assert sweep.run() == 1
    assert bedrock.files(clip_bucket) == []
    assert (records.find(job.id).state, len(bedrock.paid)) == (RecordState.CLOSED, 1)


@pytest.mark.chaos
def test_many_jobs_are_billed_once_each_while_workers_are_killed(site, bedrock):
    jobs = [enqueue(site, seed=number) for number in range(8)]
    for step in ("start", "wait"):
        assert start_managed(site, step).wait(60) == -signal.SIGKILL
    start_managed(site)
    for job in jobs:
        assert site.wait_for(job).state is JobState.COMPLETED
        site.wait_until(lambda job=job: len(clips(site, job)) == 1)
    assert sorted(bedrock.paid) == sorted(job.id for job in jobs)
