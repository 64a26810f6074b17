"""Publication: the rendered clip, its early upload and the disk space it needs."""

import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from filmgate.api.schemas import warnings_of
from filmgate.errors import LeaseLost, QueueUnavailable, StoreFull
from filmgate.jobs import JobState
from filmgate.models.cards import open_registry
from filmgate.scheduling.base import AttemptResult
from filmgate.store.base import CHECKPOINT_PART
from filmgate.telemetry.logs import Log
from filmgate.worker.attempt import Attempt
from filmgate.worker.base import ClipSource, RenderTask
from filmgate.worker.failures import Drained
from filmgate.worker.publisher import Publisher
from filmgate.worker.tracing import WorkerTracing
from filmgate.worker.turns import Device
from tests.local_site import FAST
from tests.pattern_runner import MODEL, PatternRunner, pattern_clip
from tests.tickets import make_offer, make_spec

LOG = Log("test")
CHUNK_BYTES = 1 << 20  # enough for a temporary file


class CountedRunner(PatternRunner):
    """Counts how often its clip is closed."""

    closed = 0

    def render(self, task):
        for output in PatternRunner(chunk_bytes=CHUNK_BYTES).render(task):
            yield replace(output, close=lambda o=output: self.close(o)) if is_clip(output) else output

    def close(self, clip):
        CountedRunner.closed += 1
        clip.close()


def is_clip(output):
    return isinstance(output, ClipSource)


class SlowStore:
    """A store that reads an early upload slowly."""

    def __init__(self, store):
        self._store = store

    def __getattr__(self, name):
        return getattr(self._store, name)

    def put(self, name, chunks, **options):
        if "late_head" in options:
            chunks = slowly(chunks)
        return self._store.put(name, chunks, **options)


def slowly(chunks):
    for chunk in chunks:
        time.sleep(0.05)
        yield chunk


@pytest.fixture(autouse=True)
def nothing_closed_yet():
    CountedRunner.closed = 0


def render(site, heartbeat, store=None, check=lambda: None):
    site.enqueue()
    lease = site.queue.lease(make_offer(models=(MODEL,)))
    turn = Device().admit()
    turn.check = check
    trace = WorkerTracing().begin(lease)
    attempt = Attempt(lease, heartbeat, turn, store or site.store, LOG, trace)
    attempt.render(CountedRunner())
    return attempt


def heartbeat():
    return SimpleNamespace(report=lambda progress: None)


def lose_lease():
    raise LeaseLost("another worker has it")


def test_a_published_clip_frees_its_space(site):
    attempt = render(site, heartbeat())
    result = AttemptResult(attempt.upload(FAST.store_retry_seconds), attempt.timer.seconds)
    job = Publisher(site.queue, site.store).complete(attempt.lease, result, LOG)
    assert job.state is JobState.COMPLETED
    assert site.read(job, job.clip.part) == pattern_clip(job.spec, CHUNK_BYTES)
    assert CountedRunner.closed == 1


def test_an_unexpected_error_after_the_end_of_a_job_does_not_delete_its_clip(site):
    class DefectiveStore:
        def __getattr__(self, name):
            return getattr(site.store, name)

        def delete(self, tenant_id, job_id, prefix=""):
            if prefix == CHECKPOINT_PART:
                raise TypeError("a defect")
            return site.store.delete(tenant_id, job_id, prefix)

    job = site.enqueue()
    with site.worker(PatternRunner(), store=DefectiveStore()):
        done = site.wait_for(job)
    assert done.state is JobState.COMPLETED
    assert site.read(done, done.clip.part) == pattern_clip(job.spec)


def test_a_clip_that_cannot_be_published_frees_its_space(site):
    class FullStore:
        def __getattr__(self, name):
            return getattr(site.store, name)

        def put(self, name, chunks, **options):
            raise StoreFull("full")

    attempt = render(site, heartbeat(), FullStore())
    with pytest.raises(StoreFull):
        attempt.upload(retry_seconds=0.1)
    assert CountedRunner.closed == 1


def test_an_attempt_that_ends_at_its_last_output_frees_the_clip(site):
    def stop_at_the_clip():
        nonlocal left
        left -= 1
        if not left:
            raise LeaseLost("another worker has it")

    outputs = list(CountedRunner().render(RenderTask(make_spec())))
    outputs[-1].close()
    left, CountedRunner.closed = len(outputs), 0
    with pytest.raises(LeaseLost):
        render(site, heartbeat(), check=stop_at_the_clip)
    assert CountedRunner.closed == 1


def test_a_lost_lease_stops_the_early_upload_before_its_objects_are_deleted(site):
    attempt = render(site, heartbeat(), SlowStore(site.store))
    attempt.turn.check = lose_lease
    with pytest.raises(LeaseLost):
        attempt.upload(FAST.store_retry_seconds)
    Publisher(site.queue, SlowStore(site.store)).discard(attempt.lease)
    for thread in threading.enumerate():
        if thread.name.startswith("early-upload"):
            thread.join(60)
    assert site.parts(attempt.lease.job) == [CHECKPOINT_PART]


class QueueDown:
    """A queue whose database commits, but does not answer."""

    def __init__(self, queue):
        self._queue = queue

    def complete(self, lease, result):
        self._queue.complete(lease, result)
        raise QueueUnavailable("the connection was lost")

    def fail_attempt(self, lease, failed):
        raise QueueUnavailable("down")


def test_after_a_drain_a_publisher_gives_up_and_keeps_a_clip_that_may_be_published(site, monkeypatch):
    monkeypatch.setattr("filmgate.worker.publisher._HAND_BACK_SECONDS", 0.0)
    attempt = render(site, heartbeat())
    result = AttemptResult(attempt.upload(FAST.store_retry_seconds), attempt.timer.seconds)
    publisher = Publisher(QueueDown(site.queue), site.store)
    publisher.drain(time.monotonic())
    assert publisher.complete(attempt.lease, result, LOG) is None
    assert publisher.end_with_error(attempt.lease, Drained(), LOG) is None
    job = site.find(attempt.lease.job)
    assert site.read(job, job.clip.part) == pattern_clip(job.spec, CHUNK_BYTES)


def test_an_upload_that_fails_is_not_retried_after_the_drain(site):
    class FullStore:
        def __getattr__(self, name):
            return getattr(site.store, name)

        def put(self, name, chunks, **options):
            if name.part.startswith("thumbnail"):
                worker.drain(within_seconds=0)
                raise StoreFull("full")
            return site.store.put(name, chunks, **options)

    job = site.enqueue()
    with site.worker(PatternRunner(), store=FullStore()) as worker:
        worker.thread.join(60)
    back = site.find(job)
    assert (back.state, back.attempt, site.parts(job)) == (JobState.QUEUED, 0, [CHECKPOINT_PART])


def test_a_job_says_that_memory_ran_out_and_its_clip_is_an_approximation(site):
    class ShortOfMemory(PatternRunner):
        def render(self, task):
            for output in PatternRunner().render(task):
                is_clip = isinstance(output, ClipSource)
                yield replace(output, reduced_to="fast, 256 px tiles") if is_clip else output

    job = site.enqueue()
    with site.worker(ShortOfMemory()):
        done = site.wait_for(job)
    assert done.clip.reduced_to == "fast, 256 px tiles"
    (warning,) = warnings_of(SimpleNamespace(models=open_registry("")), done)
    assert "GPU memory ran out, so the clip was decoded in fast, 256 px tiles" in warning
