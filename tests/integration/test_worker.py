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
)
from filmgate.jobs import JobState, Reason, Source, SourceKind, Stage
from filmgate.store.base import CHECKPOINT_PART, ObjectName, live_part
from filmgate.worker import loop
from filmgate.worker import publisher as publication
from filmgate.worker.base import ClipSource, EarlyClip, Latents, Step
from filmgate.worker.failures import DRAINED
from tests.local_site import ACME, FAST, Tapped
from tests.pattern_runner import MODEL, PatternRunner, pattern_clip
from tests.tickets import make_offer
from tests.waiting import wait_until


def test_a_job_leaves_its_clip_and_stills_and_no_intermediate_objects(site):
    job = site.enqueue()
    with site.worker(PatternRunner()):
        done = site.wait_for(job)
    assert done.state is JobState.COMPLETED
    assert site.read(job, done.clip.part) == pattern_clip(job.spec)
    assert done.clip.sha256 == hashlib.sha256(pattern_clip(job.spec)).hexdigest()
    assert (done.clip.size_bytes, done.device, done.worker_id) == (8 * 4096, "pattern", "worker-1")
    assert site.parts(job) == ["clip-1.mp4", "spritesheet-1.jpg", "thumbnail-1.jpg"]
    stages = [event.stage for event in site.reader.events(ACME, job.id) if event.stage]
    assert stages == [Stage.TEXT, Stage.DENOISE, Stage.DECODE, Stage.UPLOAD, Stage.UPLOAD]
    assert done.measured.denoise > 0


def test_fragments_can_be_read_while_the_clip_is_still_being_decoded(site):
    seen, job = [], site.enqueue()

    def tap(task, output):
        if isinstance(output, Step) and output.stage is Stage.DECODE and output.done:
            seen.append(site.read(job, live_part(1, output.done - 1)))

    with site.worker(Tapped(tap)):
        site.wait_for(job)
    assert b"".join(seen) == pattern_clip(job.spec)


def test_the_last_fragments_stay_for_a_few_seconds(site, monkeypatch):
    ahead, clock = [0.0], SimpleNamespace(sleep=time.sleep)
    clock.monotonic = lambda: time.monotonic() + ahead[0]
    monkeypatch.setattr(publication, "time", clock)
    monkeypatch.setattr(publication, "_FRAGMENT_GRACE_SECONDS", 600)
    with site.worker(PatternRunner()):
        job = site.enqueue()
        fragments = site.wait_for(job).clip.fragments
        last = live_part(1, fragments - 1)
        assert fragments > 1
        assert last in site.parts(job)
        assert live_part(1, fragments) not in site.parts(job)

        def is_gone_after_a_while():
            ahead[0] += 600
            return last not in site.parts(job)

        wait_until(is_gone_after_a_while)


def test_progress_counts_finished_steps(site):
    job, reached = site.enqueue(), threading.Event()
    gate = threading.Event()

    def tap(task, output):
        if output == Step(Stage.DENOISE, 4, 8):
            reached.set()
            gate.wait(60)

    with site.worker(Tapped(tap)):
        assert reached.wait(60)
        at_three = site.wait_for(job, lambda j: j.progress is not None and j.progress.done == 3)
        assert at_three.progress.fraction == pytest.approx((1 + 6 * 3 / 8) / 10.5)
        gate.set()
        assert site.wait_for(job).state is JobState.COMPLETED


def test_the_task_contains_the_tenant(site):
    job, owners = site.enqueue(), set()
    with site.worker(Tapped(lambda task, _: owners.add(task.tenant_id))):
        site.wait_for(job)
    assert owners == {ACME}


def test_the_upload_of_one_job_overlaps_the_rendering_of_the_next(site):
    first, second = site.enqueue(slo_seconds=10), site.enqueue(slo_seconds=20, seed=8)
    may_upload, is_second_rendered = threading.Event(), threading.Event()
    begun = []

    class SlowUpload(PatternRunner):
        def render(self, task):
            begun.append(time.monotonic())
            for output in PatternRunner().render(task):
                is_clip = isinstance(output, ClipSource)
                if is_clip and task.spec.seed == second.spec.seed:
                    is_second_rendered.set()
                is_held = is_clip and task.spec.seed == first.spec.seed
                if not isinstance(output, EarlyClip):
                    yield ClipSource(lambda: may_upload.wait(60) and iter([b"late"])) if is_held else output

    with site.worker(SlowUpload()):
        assert is_second_rendered.wait(60)
        assert site.find(first).state is JobState.RUNNING
        time.sleep(0.5)  # the upload takes at least this long; a slow machine only makes it longer
        may_upload.set()
        done, waited = site.wait_for(first), site.wait_for(second)
        seconds = time.monotonic() - begun[1]
    assert done.state is waited.state is JobState.COMPLETED
    assert done.measured.upload > 0.4
    assert waited.measured.gpu_seconds < seconds - 0.4, (
        "waiting for another upload does not count as GPU time"
    )


def test_a_cancelled_job_stops_within_a_step_and_leaves_no_object_and_no_error(site, caplog):
    steps, job = [], site.enqueue(steps=10_000)

    def tap(task, output):
        steps.append(output)
        time.sleep(0.02)  # 200 s in all: enough for the cancel to arrive on any machine

    with site.worker(Tapped(tap)):
        site.wait_for(job, lambda j: j.has_started)
        site.queue.cancel(ACME, job.id)
        ended = site.wait_for(job)
    assert ended.failure.reason is Reason.CANCELLED
    assert len(steps) < 5000
    assert site.parts(job) == []
    assert [record.getMessage() for record in caplog.records if record.levelname != "INFO"] == []


def test_after_a_failure_in_decode_the_retry_only_decodes(site):
    job, outputs = site.enqueue(), []

    def tap(task, output):
        outputs.append(output)
        if output == Step(Stage.DECODE, 3, 8) and len(outputs) < 21:
            raise OutOfMemory("no rung held")

    with site.worker(Tapped(tap)):
        done = site.wait_for(job)
    assert (done.state, done.attempt) == (JobState.COMPLETED, 2)
    assert sum(isinstance(output, Latents) for output in outputs) == 1
    assert site.read(job, done.clip.part) == pattern_clip(job.spec)
    assert [e.reason for e in site.reader.events(ACME, job.id) if e.reason] == [Reason.OUT_OF_MEMORY]


def hand_back(site):
    """A job that a worker has handed back: it may have a checkpoint."""
    site.enqueue()
    return site.queue.fail_attempt(site.queue.lease(make_offer(models=(MODEL,))), DRAINED)


def test_a_corrupt_checkpoint_is_deleted_and_the_job_denoises_again(site, tmp_path):
    job = hand_back(site)
    checkpoint = ObjectName(ACME, job.id, CHECKPOINT_PART)
    site.store.put(checkpoint, [b"x" * 1024])
    path = tmp_path / "objects" / str(checkpoint)
    stored = path.read_bytes()
    path.write_bytes(stored[:-1] + bytes([stored[-1] ^ 1]))
    with site.worker(PatternRunner()):
        done = site.wait_for(job)
    assert (done.state, done.attempt) == (JobState.COMPLETED, 2)


def test_an_empty_checkpoint_costs_one_attempt_and_not_the_worker(site, tmp_path):
    job, other = hand_back(site), site.enqueue()
    checkpoint = ObjectName(ACME, job.id, CHECKPOINT_PART)
    site.store.put(checkpoint, [b"x" * 1024])
    (tmp_path / "objects" / str(checkpoint)).write_bytes(b"")
    with site.worker(PatternRunner()):
        assert site.wait_for(job).state is JobState.COMPLETED
        assert site.wait_for(other).state is JobState.COMPLETED


def test_a_job_that_always_fails_ends_with_its_reason_and_the_worker_continues(site):
    bad, good = site.enqueue(seed=666), site.enqueue()

    def tap(task, output):
        if task.spec.seed == 666:
            raise ValueError(task.spec.prompt)

    with site.worker(Tapped(tap)):
        failed, done = site.wait_for(bad), site.wait_for(good)
    assert (failed.attempt, failed.failure.reason) == (3, Reason.INTERNAL)
    assert failed.spec.prompt not in failed.failure.message
    assert done.state is JobState.COMPLETED


def test_a_permanent_error_is_not_retried(site):
    job = site.enqueue()

    def tap(task, output):
        raise DecodeError("NaN in the latents")

    with site.worker(Tapped(tap)):
        failed = site.wait_for(job)
    assert (failed.attempt, failed.failure.reason) == (1, Reason.DECODE_FAILED)


def test_a_device_error_ends_the_worker_and_requeues_the_job(site):
    job = site.enqueue()

    def tap(task, output):
        raise DeviceError("an illegal memory access was encountered")

    with site.worker(Tapped(tap)) as worker:
        worker.thread.join(60)
        assert [type(failure) for failure in worker.failures] == [DeviceError]
    assert (site.find(job).state, site.find(job).attempt) == (JobState.QUEUED, 1)


def test_a_worker_whose_canary_fails_leases_no_job(site):
    job = site.enqueue()

    class BrokenRunner(PatternRunner):
        def check(self):
            raise DeviceError("the canary is wrong")

    with site.worker(BrokenRunner()) as worker:
        worker.thread.join(60)
    assert len(worker.failures) == 1
    assert site.find(job).attempt == 0


def test_a_drain_with_time_left_finishes_the_job(site):
    job = site.enqueue()
    with site.worker(PatternRunner(pace_seconds=0.02)) as worker:
        site.wait_for(job, lambda j: j.has_started)
        worker.drain()
        assert worker.status.is_draining
    assert site.find(job).state is JobState.COMPLETED


def test_a_drain_without_time_requeues_the_job_with_its_checkpoint(site):
    job = site.enqueue()
    site.settings = FAST.model_copy(update={"drain_seconds": 0.0})

    def tap(task, output):
        if output == Step(Stage.DECODE, 3, 8):
            worker.drain()

    with site.worker(Tapped(tap)) as worker:
        worker.thread.join(60)
    back = site.find(job)
    assert (back.state, back.attempt) == (JobState.QUEUED, 0)
    assert site.parts(job) == [CHECKPOINT_PART]
    outputs = []
    with site.worker(Tapped(lambda task, output: outputs.append(output))):
        assert site.wait_for(job).state is JobState.COMPLETED
    assert not any(isinstance(output, Latents) for output in outputs)


def test_a_job_that_does_not_stop_at_the_end_of_a_drain_is_handed_back_without_it(site, monkeypatch):
    """It loads a model for minutes, or a GPU hangs: the process is killed before the job stops."""
    monkeypatch.setattr(loop, "_LATE_SECONDS", 0.1)
    is_loading, is_loaded = threading.Event(), threading.Event()

    class LoadingRunner(PatternRunner):
        def render(self, task):
            is_loading.set()
            is_loaded.wait(60)
            yield from super().render(task)

    job = site.enqueue()
    with site.worker(LoadingRunner()) as worker:
        assert is_loading.wait(60)
        worker.drain(within_seconds=0)
        back = site.wait_for(job, lambda j: j.state is JobState.QUEUED)
        assert (back.attempt, worker.thread.is_alive()) == (0, True)
        is_loaded.set()
    assert (site.find(job).state, site.parts(job)) == (JobState.QUEUED, [])
    with site.worker(PatternRunner()):
        assert site.wait_for(job).state is JobState.COMPLETED


def test_a_drain_with_a_shorter_limit_hands_back_and_a_later_drain_does_not_extend_it(site):
    job = site.enqueue()
    site.settings = FAST.model_copy(update={"drain_seconds": 3600.0})

    def tap(task, output):
        if output == Step(Stage.DECODE, 3, 8):
            worker.drain(within_seconds=0)
            worker.drain()

    with site.worker(Tapped(tap)) as worker:
        worker.thread.join(60)
    assert (site.find(job).state, site.parts(job)) == (JobState.QUEUED, [CHECKPOINT_PART])


def test_a_worker_that_lost_its_lease_deletes_its_objects(site):
    job = site.enqueue()

    class StolenQueue:
        """Another worker completes the job first."""

        def __getattr__(self, name):
            return getattr(site.queue, name)

        def complete(self, lease, result):
            assert site.parts(job)
            raise LeaseLost("another worker has it")

    with site.worker(PatternRunner(), queue=StolenQueue()):
        wait_until(lambda: site.parts(job) == [CHECKPOINT_PART])
    assert site.parts(job) == [CHECKPOINT_PART]


def test_the_first_attempt_does_not_look_for_a_checkpoint(site):
    class StoreWithoutStat:
        def __getattr__(self, name):
            assert name != "stat"
            return getattr(site.store, name)

    job = site.enqueue()
    with site.worker(PatternRunner(), store=StoreWithoutStat()):
        done = site.wait_for(job)
    assert (done.state, done.attempt) == (JobState.COMPLETED, 1)


def test_a_missing_source_fails_the_job_with_that_reason(site):
    other = site.enqueue()
    job = site.enqueue(source=Source(SourceKind.REMIX, job_id=other.id, part="clip-1.mp4"))
    site.queue.cancel(ACME, other.id)

    def tap(task, output):
        b"".join(task.read_source())

    with site.worker(Tapped(tap)):
        failed = site.wait_for(job)
    assert (failed.failure.reason, failed.attempt) == (Reason.SOURCE_MISSING, 1)
    with pytest.raises(ObjectNotFound):
        site.read(other, "clip-1.mp4")
