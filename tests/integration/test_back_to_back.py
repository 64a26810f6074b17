"""While one job decodes, the next is leased and prepared; it starts when the device is free."""

import threading
import time
from dataclasses import replace

import pytest

from filmgate.errors import DeviceError, LeaseLost
from filmgate.jobs import JobState, Reason, Share, Stage
from filmgate.store.base import CHECKPOINT_PART
from filmgate.worker.base import ClipSource, Step
from tests.local_site import ACME, FAST, Tapped
from tests.pattern_runner import MODEL, PatternRunner, pattern_clip
from tests.tickets import make_ticket
from tests.waiting import wait_until


class Gates:
    """Stops chosen jobs in the middle of their decode, until the test lets them go on."""

    def __init__(self, *seeds):
        self.reached = {seed: threading.Event() for seed in seeds}
        self.open = {seed: threading.Event() for seed in seeds}
        self.outputs = []

    def tap(self, task, output):
        self.outputs.append((task.spec.seed, output))
        if output == Step(Stage.DECODE, 3, 8) and task.spec.seed in self.open:
            self.reached[task.spec.seed].set()
            self.open[task.spec.seed].wait(60)

    def steps_of(self, seed):
        return [output for owner, output in self.outputs if owner == seed]


def is_prepared(job):
    """Leased, but not started: clients see it as queued."""
    return job.state is JobState.RUNNING and not job.has_started


@pytest.fixture
def two(site):
    """Two jobs, and gates that stop the first one while it decodes."""
    first, second = site.enqueue(seed=1, slo_seconds=10), site.enqueue(seed=2, slo_seconds=20)
    gates = Gates(1)
    yield first, second, gates
    gates.open[1].set()


def test_the_next_job_is_leased_during_decode_and_starts_when_the_device_is_free(site, two):
    first, second, gates = two
    with site.worker(Tapped(gates.tap)):
        prepared = site.wait_for(second, is_prepared)
        assert (gates.steps_of(2), prepared.progress) == ([], None)
        leased_at = prepared.started_at
        gates.open[1].set()
        done = site.wait_for(second)
    assert done.state is site.find(first).state is JobState.COMPLETED
    assert done.started_at > leased_at, "a prepared job starts with its first step"
    assert site.read(second, done.clip.part) == pattern_clip(second.spec)


def test_the_next_job_denoises_while_the_one_before_is_encoded_and_stored(site):
    first, second = site.enqueue(seed=1, slo_seconds=10), site.enqueue(seed=2, slo_seconds=20)
    has_second_started = threading.Event()

    def tap(task, output):
        if task.spec.seed == second.spec.seed:
            has_second_started.set()
        elif isinstance(output, ClipSource):
            assert has_second_started.wait(60), "the device waited for the end of the first job"

    with site.worker(Tapped(tap)):
        assert site.wait_for(second).state is JobState.COMPLETED
    assert site.find(first).state is JobState.COMPLETED


def test_a_cancelled_prepared_job_never_starts_and_the_next_one_follows(site, two):
    first, second, gates = two
    third = site.enqueue(seed=3, slo_seconds=30)
    with site.worker(Tapped(gates.tap)):
        site.wait_for(second, is_prepared)
        site.queue.cancel(ACME, second.id)
        ended = site.wait_for(second)
        assert (ended.failure.reason, gates.steps_of(2)) == (Reason.CANCELLED, [])
        assert not site.find(first).state.is_final, "the running job does not notice"
        gates.open[1].set()
        assert site.wait_for(first).state is site.wait_for(third).state is JobState.COMPLETED
    assert site.parts(second) == []


def test_a_drain_hands_the_prepared_job_back_unharmed_and_finishes_the_running_one(site, two):
    first, second, gates = two
    with site.worker(Tapped(gates.tap)) as worker:
        site.wait_for(second, is_prepared)
        worker.drain()
        back = site.wait_for(second, lambda job: job.state is JobState.QUEUED)
        assert (back.attempt, site.parts(second)) == (0, [])
        gates.open[1].set()
    assert site.find(first).state is JobState.COMPLETED
    assert (site.find(second).state, gates.steps_of(2)) == (JobState.QUEUED, [])


def test_a_prepared_job_whose_lease_is_lost_is_left_to_its_new_worker(site, two):
    first, second, gates = two
    is_lost = threading.Event()

    class StolenQueue:
        """The prepared job gets another fence."""

        def __getattr__(self, name):
            return getattr(site.queue, name)

        def heartbeat(self, lease, progress=None):
            if lease.job.id == second.id and is_lost.is_set():
                raise LeaseLost("another worker has it")
            return site.queue.heartbeat(lease, progress)

    with site.worker(Tapped(gates.tap), queue=StolenQueue()) as worker:
        site.wait_for(second, is_prepared)
        wait_until(lambda: worker._device.jobs == 2)  # leased, and now also admitted
        is_lost.set()
        wait_until(lambda: worker._device.jobs == 1)
        worker.drain()
        gates.open[1].set()
    assert site.find(first).state is JobState.COMPLETED
    assert (site.find(second).state, gates.steps_of(2)) == (JobState.RUNNING, [])


def test_a_broken_device_hands_the_prepared_job_back_without_using_an_attempt(site):
    first, second = site.enqueue(seed=1, slo_seconds=10), site.enqueue(seed=2, slo_seconds=20)

    def tap(task, output):
        if output == Step(Stage.DECODE, 3, 8):
            site.wait_for(second, is_prepared)
            raise DeviceError("an illegal memory access was encountered")

    with site.worker(Tapped(tap)) as worker:
        worker.thread.join(60)
    assert [type(failure) for failure in worker.failures] == [DeviceError]
    assert (site.find(first).attempt, site.find(second).attempt) == (1, 0)
    assert site.find(second).state is JobState.QUEUED


def test_a_job_that_failed_before_is_rendered_alone(site):
    """A job that ends the process must not cost its neighbour an attempt each time."""
    first, others = site.enqueue(seed=1, slo_seconds=10), []

    def tap(task, output):
        if task.spec.seed != first.spec.seed or output != Step(Stage.DECODE, 3, 8):
            return
        if site.find(first).attempt == 1:
            raise ValueError("fails once")
        others.append(site.enqueue(seed=2))
        assert not worker._device._has_room()

    with site.worker(Tapped(tap)) as worker:
        done = site.wait_for(first)
        assert (done.state, done.attempt) == (JobState.COMPLETED, 2)
        assert site.wait_for(others[0]).attempt == 1


def test_tenants_take_turns_and_keep_their_limits(site):
    """Fair share decides who is prepared next, and a prepared job counts against `max_running`."""
    one = Share(max_running=1)
    jobs = [
        site.queue.enqueue(make_ticket(tenant, model=MODEL, share=one, seed=seed))
        for tenant, seed in (("acme", 1), ("acme", 2), ("globex", 3), ("globex", 4))
    ]
    started = []

    def tap(task, output):
        if output == Step(Stage.DENOISE, 0, 8):
            started.append(task.tenant_id)

    with site.worker(Tapped(tap)):
        for job in jobs:
            site.wait_for(job)
    assert started == ["acme", "globex", "acme", "globex"]


def test_different_models_follow_each_other(site):
    class Two(PatternRunner):
        models = (MODEL, "other")

    first = site.enqueue(seed=1, slo_seconds=10)
    ticket = make_ticket(seed=2)
    other = site.queue.enqueue(replace(ticket, spec=replace(ticket.spec, model="other")))
    with site.worker(Two()):
        assert site.wait_for(first).state is site.wait_for(other).state is JobState.COMPLETED


def test_the_gpu_seconds_of_a_job_end_when_it_leaves_the_device(site):
    """Encoding the last frames runs beside the next job, so it is not charged twice."""
    job, times = site.enqueue(seed=1), []

    def tap(task, output):
        if output == Step(Stage.DECODE, 0, 8):
            times.append(time.monotonic())
        if isinstance(output, ClipSource):
            wait_until(lambda: not worker._device.is_busy)
            times.append(time.monotonic())
            time.sleep(0.5)  # the end of encoding

    with site.worker(Tapped(tap)) as worker:
        done = site.wait_for(job)
    began, left = times
    assert done.measured.decode < left - began + 0.4, "the 0.5 s are not charged"


def test_a_drain_without_time_hands_both_jobs_back(site, two):
    first, second, gates = two
    site.settings = FAST.model_copy(update={"drain_seconds": 0.0})
    with site.worker(Tapped(gates.tap)) as worker:
        site.wait_for(second, is_prepared)
        worker.drain()
        gates.open[1].set()
        worker.thread.join(60)
    for job, parts in ((first, [CHECKPOINT_PART]), (second, [])):
        back = site.find(job)
        assert (back.state, back.attempt, site.parts(job)) == (JobState.QUEUED, 0, parts)
