"""The worker during an outage of the store, the keyring or the database."""

import threading
import time
from types import SimpleNamespace

from filmgate.errors import (
    KeyringUnavailable,
    ModelUnavailable,
    QueueUnavailable,
    StoreFull,
    StoreUnavailable,
)
from filmgate.jobs import JobState, Reason, Source, SourceKind, Stage
from filmgate.store.base import UPLOAD_PART, ObjectName
from filmgate.telemetry.logs import Log
from filmgate.worker.base import Step
from filmgate.worker.heartbeat import Heartbeat
from tests.local_site import ACME, FAST, Tapped
from tests.pattern_runner import MODEL, PatternRunner
from tests.tickets import make_offer
from tests.waiting import wait_until


def test_a_full_store_loses_live_playback_but_not_the_clip(site):
    job, rejected = site.enqueue(), []

    class FullStore:
        """Full until the second upload of the thumbnail."""

        def __getattr__(self, name):
            return getattr(site.store, name)

        def put(self, name, chunks, **options):
            if len([part for part in rejected if part.startswith("thumbnail")]) < 2:
                rejected.append(name.part)
                raise StoreFull("full")
            return site.store.put(name, chunks, **options)

    with site.worker(PatternRunner(), store=FullStore()):
        done = site.wait_for(job)
    assert done.state is JobState.COMPLETED
    assert rejected.count("clip-1.mp4") == 1  # the early upload
    rejected.remove("clip-1.mp4")
    assert rejected == ["latents", "live/1/000000", "preview-1.jpg", "thumbnail-1.jpg", "thumbnail-1.jpg"]


def test_a_key_that_fails_during_the_upload_costs_no_attempt(site, monkeypatch):
    monkeypatch.setattr("filmgate.worker.failures._FIRST_PAUSE_SECONDS", 0.05)
    left = 12

    class StoreWithoutKeys:
        def __getattr__(self, name):
            return getattr(site.store, name)

        def put(self, name, chunks, **options):
            nonlocal left
            left -= 1
            if left > 0:
                raise KeyringUnavailable("the key service does not answer")
            return site.store.put(name, chunks, **options)

    site.settings = FAST.model_copy(update={"store_retry_seconds": 0.0})
    job = site.enqueue()
    with site.worker(PatternRunner(), store=StoreWithoutKeys()):
        done = site.wait_for(job)
    assert (done.state, done.attempt) == (JobState.COMPLETED, 1)
    reasons = [event.reason for event in site.reader.events(job.tenant_id, job.id) if event.reason]
    assert (set(reasons), done.fence) == ({Reason.KEY_REFUSED}, len(reasons) + 1)


def test_an_outage_of_the_store_before_a_job_costs_no_attempt(site, monkeypatch):
    monkeypatch.setattr("filmgate.worker.failures._FIRST_PAUSE_SECONDS", 0.05)
    left = 6

    class StoreWithOutage:
        """The first reads fail: of the image, then also of the checkpoint."""

        def __getattr__(self, name):
            return getattr(site.store, name)

        def stat(self, name):
            self.fail()
            return site.store.stat(name)

        def read(self, name):
            self.fail()
            return site.store.read(name)

        def fail(self):
            nonlocal left
            left -= 1
            if left > 0:
                raise StoreUnavailable("S3 cannot be reached")

    job = site.enqueue(source=Source(SourceKind.IMAGE, part=UPLOAD_PART, media_type="image/png"))
    site.store.put(ObjectName(ACME, job.id, UPLOAD_PART), [b"an image"])
    with site.worker(Tapped(lambda task, _: b"".join(task.read_source())), store=StoreWithOutage()):
        done = site.wait_for(job)
    assert (done.state, done.attempt, done.fence) == (JobState.COMPLETED, 1, 6)


def test_an_outage_of_the_model_hub_costs_no_attempt(site, monkeypatch):
    monkeypatch.setattr("filmgate.worker.failures._FIRST_PAUSE_SECONDS", 0.05)
    left = 5

    def load(_task, _output):
        nonlocal left
        left -= 1
        if left > 0:
            raise ModelUnavailable("HTTP 503 from the model hub for some-team/tiny; try again")

    job = site.enqueue()
    with site.worker(Tapped(load)):
        done = site.wait_for(job)
    assert (done.state, done.attempt, done.fence) == (JobState.COMPLETED, 1, 5)


def test_a_database_outage_during_a_job_loses_nothing(site):
    job, is_down = site.enqueue(), threading.Event()

    class FlakyQueue:
        """Every verb except `wait`, which does not need the database, fails during the outage."""

        def __getattr__(self, name):
            verb = getattr(site.queue, name)

            def call(*arguments):
                if is_down.is_set() and name != "wait":
                    raise QueueUnavailable("down")
                return verb(*arguments)

            return call

    def tap(task, output):
        if output == Step(Stage.DENOISE, 2, 8):
            is_down.set()
            threading.Timer(0.8, is_down.clear).start()

    with site.worker(Tapped(tap), queue=FlakyQueue()):
        done = site.wait_for(job)
    assert (done.state, done.attempt) == (JobState.COMPLETED, 1)


def test_a_heartbeat_that_failed_is_repeated_before_the_next_one_is_due(site, monkeypatch):
    """With the longest interval that is allowed, the next one would come after the end of the lease."""
    now, tries = [0.0], []
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=time.sleep)
    monkeypatch.setattr("filmgate.worker.heartbeat.time", clock)

    def beat(lease, progress):
        tries.append(progress)
        if len(tries) == 1:
            raise QueueUnavailable("down")
        return site.queue.heartbeat(lease, progress)

    site.enqueue()
    lease = site.queue.lease(make_offer(models=(MODEL,)))
    heartbeat = Heartbeat(SimpleNamespace(heartbeat=beat), lease, FAST, Log("worker"))
    heartbeat.start()
    now[0] += FAST.heartbeat_seconds
    wait_until(lambda: len(tries) == 2)
    heartbeat.close()
    heartbeat.check()
