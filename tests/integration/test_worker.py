"""The worker with SQLite, the local store and the pattern runner."""

import hashlib
import threading
import time
from types import SimpleNamespace

import pytest

from filmgate.errors import (
    DecodeError,
    DeviceError,
    LeaseLost,
    ObjectNotFound,
    OutOfMemory,
    QueueUnavailable,
    StoreFull,
)
from filmgate.jobs import JobState, Reason, Source, SourceKind, Stage
from filmgate.store.base import CHECKPOINT_PART, ObjectName, live_part
from filmgate.worker import publisher as publication
from filmgate.worker.base import ClipSource, EarlyClip, Latents, Step
from filmgate.worker.pattern_runner import PatternRunner, pattern_clip
from tests.local_site import ACME, FAST, Tapped
from tests.waiting import wait_until


def test_a_job_leaves_its_clip_and_stills_and_no_intermediate_objects(shop):
    job = shop.enqueue()
    with shop.worker(PatternRunner()):
        done = shop.wait_for(job)
    assert done.state is JobState.COMPLETED
    assert shop.read(job, done.clip.part) == pattern_clip(job.spec)
    assert done.clip.sha256 == hashlib.sha256(pattern_clip(job.spec)).hexdigest()
    assert (done.clip.size_bytes, done.device, done.worker_id) == (8 * 4096, "pattern", "worker-1")
    assert shop.parts(job) == ["clip-1.mp4", "spritesheet-1.jpg", "thumbnail-1.jpg"]
    stages = [event.stage for event in shop.book.events(ACME, job.id) if event.stage]
    assert stages == [Stage.TEXT, Stage.DENOISE, Stage.DECODE, Stage.UPLOAD, Stage.UPLOAD]
    assert done.measured.denoise > 0


def test_fragments_can_be_read_while_the_clip_is_still_being_decoded(shop):
    seen, job = [], shop.enqueue()

    def tap(task, output):
        if isinstance(output, Step) and output.stage is Stage.DECODE and output.done:
            seen.append(shop.read(job, live_part(1, output.done - 1)))

    with shop.worker(Tapped(tap)):
        shop.wait_for(job)
    assert b"".join(seen) == pattern_clip(job.spec)


def test_the_last_fragments_stay_for_a_few_seconds(shop, monkeypatch):
    ahead, clock = [0.0], SimpleNamespace(sleep=time.sleep)
    clock.monotonic = lambda: time.monotonic() + ahead[0]
    monkeypatch.setattr(publication, "time", clock)
    monkeypatch.setattr(publication, "_FRAGMENT_GRACE_SECONDS", 600)
    with shop.worker(PatternRunner()):
        job = shop.enqueue()
        fragments = shop.wait_for(job).clip.fragments
        last = live_part(1, fragments - 1)
        assert fragments > 1
        assert last in shop.parts(job)
        assert live_part(1, fragments) not in shop.parts(job)

        def is_gone_after_a_while():
            ahead[0] += 600
            return last not in shop.parts(job)

        wait_until(is_gone_after_a_while)


def test_progress_counts_finished_steps(shop):
    job, reached = shop.enqueue(), threading.Event()
    gate = threading.Event()

    def tap(task, output):
        if output == Step(Stage.DENOISE, 4, 8):
            reached.set()
            gate.wait(60)

    with shop.worker(Tapped(tap)):
        assert reached.wait(60)
        at_three = shop.wait_for(job, lambda j: j.progress is not None and j.progress.done == 3)
        assert at_three.progress.fraction == pytest.approx((1 + 6 * 3 / 8) / 10.5)
        gate.set()
        assert shop.wait_for(job).state is JobState.COMPLETED


def test_the_task_contains_the_tenant(shop):
    job, owners = shop.enqueue(), set()
    with shop.worker(Tapped(lambda task, _: owners.add(task.tenant_id))):
        shop.wait_for(job)
    assert owners == {ACME}


def test_the_upload_of_one_job_overlaps_the_rendering_of_the_next(shop):
    first, second = shop.enqueue(slo_seconds=10), shop.enqueue(slo_seconds=20, seed=8)
    may_upload, is_second_rendered = threading.Event(), threading.Event()
    begun = []

    class SlowUpload(PatternRunner):
        def render(self, task):
            begun.append(time.monotonic())
            for output in PatternRunner().render(task):
                is_clip = isinstance(output, ClipSource)
                if is_clip and task.job_id == second.id:
                    is_second_rendered.set()
                is_held = is_clip and task.job_id == first.id
                if not isinstance(output, EarlyClip):
                    yield ClipSource(lambda: may_upload.wait(60) and iter([b"late"])) if is_held else output

    with shop.worker(SlowUpload()):
        assert is_second_rendered.wait(60)
        assert shop.find(first).state is JobState.RUNNING
        time.sleep(0.5)  # the upload takes at least this long; a slow machine only makes it longer
        may_upload.set()
        done, waited = shop.wait_for(first), shop.wait_for(second)
        seconds = time.monotonic() - begun[1]
    assert done.state is waited.state is JobState.COMPLETED
    assert done.measured.upload > 0.4
    assert waited.measured.gpu_seconds < seconds - 0.4, (
        "waiting for another upload does not count as GPU time"
    )


def test_a_cancelled_job_stops_within_a_step_and_leaves_no_object(shop):
    steps, job = [], shop.enqueue(steps=10_000)

    def tap(task, output):
        steps.append(output)
        time.sleep(0.02)  # 200 s in all: enough for the cancel to arrive on any machine

    with shop.worker(Tapped(tap)):
        shop.wait_for(job, lambda j: j.has_started)
        shop.queue.cancel(ACME, job.id)
        ended = shop.wait_for(job)
    assert ended.failure.reason is Reason.CANCELLED
    assert len(steps) < 5000
    assert shop.parts(job) == []


def test_after_a_failure_in_decode_the_retry_only_decodes(shop):
    job, outputs = shop.enqueue(), []

    def tap(task, output):
        outputs.append(output)
        if output == Step(Stage.DECODE, 3, 8) and len(outputs) < 21:
            raise OutOfMemory("no rung held")

    with shop.worker(Tapped(tap)):
        done = shop.wait_for(job)
    assert (done.state, done.attempt) == (JobState.COMPLETED, 2)
    assert sum(isinstance(output, Latents) for output in outputs) == 1
    assert shop.read(job, done.clip.part) == pattern_clip(job.spec)
    assert [e.reason for e in shop.book.events(ACME, job.id) if e.reason] == [Reason.OUT_OF_MEMORY]


def test_a_corrupt_checkpoint_is_deleted_and_the_job_denoises_again(shop, tmp_path):
    job = shop.enqueue()
    checkpoint = ObjectName(ACME, job.id, CHECKPOINT_PART)
    shop.store.put(checkpoint, [b"x" * 1024])
    path = tmp_path / "objects" / str(checkpoint)
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    with shop.worker(PatternRunner()):
        done = shop.wait_for(job)
    assert (done.state, done.attempt) == (JobState.COMPLETED, 2)


def test_a_job_that_always_fails_ends_with_its_reason_and_the_worker_continues(shop):
    bad, good = shop.enqueue(seed=666), shop.enqueue()

    def tap(task, output):
        if task.spec.seed == 666:
            raise ValueError(task.spec.prompt)

    with shop.worker(Tapped(tap)):
        failed, done = shop.wait_for(bad), shop.wait_for(good)
    assert (failed.attempt, failed.failure.reason) == (3, Reason.INTERNAL)
    assert failed.spec.prompt not in failed.failure.message
    assert done.state is JobState.COMPLETED


def test_a_permanent_error_is_not_retried(shop):
    job = shop.enqueue()

    def tap(task, output):
        raise DecodeError("NaN in the latents")

    with shop.worker(Tapped(tap)):
        failed = shop.wait_for(job)
    assert (failed.attempt, failed.failure.reason) == (1, Reason.DECODE_FAILED)


def test_a_device_error_ends_the_worker_and_requeues_the_job(shop):
    job = shop.enqueue()

    def tap(task, output):
        raise DeviceError("an illegal memory access was encountered")

    with shop.worker(Tapped(tap)) as worker:
        worker.thread.join(60)
        assert [type(failure) for failure in worker.failures] == [DeviceError]
    assert (shop.find(job).state, shop.find(job).attempt) == (JobState.QUEUED, 1)


def test_a_worker_whose_canary_fails_leases_no_job(shop):
    job = shop.enqueue()

    class BrokenRunner(PatternRunner):
        def check(self):
            raise DeviceError("the canary is wrong")

    with shop.worker(BrokenRunner()) as worker:
        worker.thread.join(60)
    assert len(worker.failures) == 1
    assert shop.find(job).attempt == 0


def test_a_drain_with_time_left_finishes_the_job(shop):
    job = shop.enqueue()
    with shop.worker(PatternRunner(pace_seconds=0.02)) as worker:
        shop.wait_for(job, lambda j: j.has_started)
        worker.drain()
    assert shop.find(job).state is JobState.COMPLETED


def test_a_drain_without_time_requeues_the_job_with_its_checkpoint(shop):
    job = shop.enqueue()
    shop.settings = FAST.model_copy(update={"drain_seconds": 0.0})

    def tap(task, output):
        if output == Step(Stage.DECODE, 3, 8):
            worker.drain()

    with shop.worker(Tapped(tap)) as worker:
        worker.thread.join(60)
    back = shop.find(job)
    assert (back.state, back.attempt) == (JobState.QUEUED, 0)
    assert shop.parts(job) == [CHECKPOINT_PART]
    outputs = []
    with shop.worker(Tapped(lambda task, output: outputs.append(output))):
        assert shop.wait_for(job).state is JobState.COMPLETED
    assert not any(isinstance(output, Latents) for output in outputs)


def test_a_worker_that_lost_its_lease_deletes_its_objects(shop):
    job = shop.enqueue()

    class StolenQueue:
        """Another worker completes the job first."""

        def __getattr__(self, name):
            return getattr(shop.queue, name)

        def complete(self, lease, finish):
            assert shop.parts(job)
            raise LeaseLost("another worker has it")

    with shop.worker(PatternRunner(), queue=StolenQueue()):
        wait_until(lambda: shop.parts(job) == [CHECKPOINT_PART])
    assert shop.parts(job) == [CHECKPOINT_PART]


def test_a_full_store_loses_live_playback_but_not_the_clip(shop):
    job, rejected = shop.enqueue(), []

    class FullStore:
        """Full until the second upload of the thumbnail."""

        def __getattr__(self, name):
            return getattr(shop.store, name)

        def put(self, name, chunks, **options):
            if len([part for part in rejected if part.startswith("thumbnail")]) < 2:
                rejected.append(name.part)
                raise StoreFull("full")
            return shop.store.put(name, chunks, **options)

    with shop.worker(PatternRunner(), store=FullStore()):
        done = shop.wait_for(job)
    assert done.state is JobState.COMPLETED
    assert rejected.count("clip-1.mp4") == 1  # the early upload
    rejected.remove("clip-1.mp4")
    assert rejected == ["latents", "live/1/000000", "preview-1.jpg", "thumbnail-1.jpg", "thumbnail-1.jpg"]


def test_a_database_outage_during_a_job_loses_nothing(shop):
    job, is_down = shop.enqueue(), threading.Event()

    class FlakyQueue:
        def __getattr__(self, name):
            verb = getattr(shop.queue, name)

            def call(*arguments):
                if is_down.is_set():
                    raise QueueUnavailable("down")
                return verb(*arguments)

            return call

    def tap(task, output):
        if output == Step(Stage.DENOISE, 2, 8):
            is_down.set()
            threading.Timer(0.8, is_down.clear).start()

    with shop.worker(Tapped(tap), queue=FlakyQueue()):
        done = shop.wait_for(job)
    assert (done.state, done.attempt) == (JobState.COMPLETED, 1)


def test_a_missing_source_fails_the_job_with_that_reason(shop):
    other = shop.enqueue()
    job = shop.enqueue(source=Source(SourceKind.REMIX, job_id=other.id, part="clip-1.mp4"))
    shop.queue.cancel(ACME, other.id)

    def tap(task, output):
        b"".join(task.read_source())

    with shop.worker(Tapped(tap)):
        failed = shop.wait_for(job)
    assert (failed.failure.reason, failed.attempt) == (Reason.SOURCE_MISSING, 1)
    with pytest.raises(ObjectNotFound):
        shop.read(other, "clip-1.mp4")
