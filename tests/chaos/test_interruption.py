"""A spot instance is interrupted: the worker hands its job back in time and takes no other."""

import signal
import time

import pytest

from filmgate.jobs import JobState, Stage
from filmgate.store.base import CHECKPOINT_PART
from tests.fake_metadata import FakeMetadata


@pytest.fixture
def metadata():
    fake = FakeMetadata()
    yield fake
    fake.close()


@pytest.mark.chaos
def test_a_reclaimed_worker_hands_back_its_job_with_the_checkpoint_and_leases_nothing_more(
    make_site, metadata
):
    site = make_site(
        FILMGATE_WORKER__INTERRUPTION="imds",
        FILMGATE_WORKER__METADATA_ENDPOINT=metadata.url,
        FILMGATE_WORKER__DRAIN_SECONDS="3600",
    )
    job = site.enqueue(steps=2, seconds=30)
    reclaimed = site.start_worker(pace=0.2)
    site.wait_for_stage(job, Stage.DECODE)
    noticed_at = time.monotonic()
    metadata.interrupt(seconds=20)  # nothing is left to finish the job in
    returned = site.wait_for(job, lambda j: j.state is JobState.QUEUED)
    assert (returned.attempt, CHECKPOINT_PART in site.parts(job)) == (0, True)
    assert time.monotonic() - noticed_at < 20, "handed back before the instance is gone"
    site.wait_for_log('"drained"')
    assert reclaimed.poll() is None, "it stays, so that nothing starts it again on this instance"
    assert site.find(job).state is JobState.QUEUED
    reclaimed.send_signal(signal.SIGTERM)
    assert reclaimed.wait(60) == 0
    other = make_site()
    other.start_worker(pace=0)
    done = other.wait_for(job)
    assert (done.state, done.attempt, other.is_whole(job)) == (JobState.COMPLETED, 1, True)
