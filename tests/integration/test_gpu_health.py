"""A GPU that cannot be trusted: the worker hands its jobs back and ends; NVML is a stand-in library."""

import json
import logging
import time

import pytest
from prometheus_client import CollectorRegistry

from filmgate.errors import DeviceBroken, DeviceDrifted, QueueUnavailable
from filmgate.jobs import JobState, Stage
from filmgate.scheduling.workers import GpuStatus
from filmgate.settings import PipelineSettings
from filmgate.store.base import CHECKPOINT_PART
from filmgate.telemetry.logs import JsonFormatter
from filmgate.telemetry.nvml import find_gpu, opened_nvml
from filmgate.worker.base import Latents, Step
from filmgate.worker.gpu_runner import GpuRunner
from filmgate.worker.gpu_watch import GpuWatch
from filmgate.worker.health import WorkerHealth, WorkerTelemetry
from filmgate.worker.metrics import WorkerMetrics
from filmgate.worker.tracing import GpuReadings
from tests.local_site import FAST, Tapped
from tests.nvml import UUID
from tests.waiting import wait_until

MID_DECODE = Step(Stage.DECODE, 3, 8)
FAULTS = {
    "double_bit_error": {"double_bit": 1},
    "row_remap_failure": {"remap_failed": 1},
    "device_lost": {"error": 15},
    "an uncontained error by XID": {"xid_number": 1, "xid": 95},
}


@pytest.fixture
def gpu(nvml):
    with opened_nvml():
        yield find_gpu(UUID)


class WatchedWorker:
    """A worker whose GPU is read between its outputs, when the test says so."""

    def __init__(self, site, gpu, on_output):
        self.registry = CollectorRegistry()
        self.telemetry = WorkerTelemetry(WorkerHealth(), WorkerMetrics(self.registry))
        self.outputs = []
        self.watch = None

        def tap(task, output):
            self.outputs.append(output)
            on_output(output, self.watch)

        with site.worker(Tapped(tap), telemetry=self.telemetry) as self.worker:
            self.watch = GpuWatch(gpu, self.worker.abandon)
            self.job = site.enqueue()
            self.worker.thread.join(60)

    @property
    def error(self):
        (error,) = self.worker.failures
        return error


@pytest.fixture
def log_lines(caplog):
    caplog.set_level(logging.INFO, "filmgate")
    return lambda: [json.loads(JsonFormatter().format(record)) for record in caplog.records]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_gpu_that_fails_in_the_middle_of_a_decode_loses_its_job_and_takes_no_other(
    site,
    gpu,
    nvml,
    log_lines,
    fault,
):
    """The job runs again elsewhere, and the log names the GPU to replace."""

    def on_output(output, watch):
        if output == MID_DECODE:
            watch.check()  # clean: the checkpoint was stored before the error
            nvml.set(**FAULTS[fault])
            watch.check()

    first = WatchedWorker(site, gpu, on_output)
    assert isinstance(first.error, DeviceBroken)
    assert first.error.exit_code == 3
    back = site.find(first.job)
    assert (back.state, back.attempt, back.clip) == (JobState.QUEUED, 0, None)
    assert site.parts(first.job) == [CHECKPOINT_PART]
    parts = first.telemetry.health.readiness().read()
    assert (parts["gpu"], parts["leases"]) == (first.error.fault, "draining")
    (line,) = [line for line in log_lines() if line["message"].startswith("the GPU cannot be trusted")]
    assert (line["gpu"], line["reason"]) == (UUID, first.error.fault)
    assert line["node"]

    outputs = []
    with site.worker(Tapped(lambda task, output: outputs.append(output))):
        assert site.wait_for(first.job).state is JobState.COMPLETED
    assert not any(isinstance(output, Latents) for output in outputs), "the checkpoint is used"


def test_latents_that_were_stored_after_the_last_clean_reading_are_computed_again(
    site,
    gpu,
    nvml,
):
    def on_output(output, watch):
        if output == MID_DECODE:  # nobody has read the GPU since the latents were stored
            nvml.set(double_bit=1)
            watch.check()

    first = WatchedWorker(site, gpu, on_output)
    assert site.parts(first.job) == []
    outputs = []
    with site.worker(Tapped(lambda task, output: outputs.append(output))):
        assert site.wait_for(first.job).state is JobState.COMPLETED
    assert any(isinstance(output, Latents) for output in outputs)


def test_an_error_from_before_the_start_keeps_a_worker_from_starting(gpu, nvml):
    nvml.set(double_bit=1)
    with pytest.raises(DeviceBroken, match=UUID):
        GpuWatch(gpu, lambda error: None).require_healthy()


def test_heat_slows_the_gpu_and_stops_nothing(gpu, nvml):
    """Throttling is visible, and no reason to stop."""
    readings = GpuReadings(UUID)
    watch = GpuWatch(gpu, lambda error: pytest.fail(str(error)), readings)
    watch.check()
    assert watch.speed == 1.0
    assert [reading.sm_clock_hertz for reading in readings.between(0, time.time())] == [1980e6]
    nvml.set(clock_reasons=0x40, clock=990, temperature=91)
    watch.check()
    assert watch.speed == 0.5
    assert (watch.status.is_healthy, watch.status.temperature_celsius) == (True, 91)
    assert 0 < watch.status.memory_used_bytes < watch.status.memory_total_bytes
    nvml.set(clock_reasons=0x4, clock=990)  # the power cap is no fault of heat: clocks follow the load
    watch.check()
    assert watch.speed == 1.0


def test_an_error_of_a_program_is_counted_and_stops_nothing(gpu, nvml):
    watch = GpuWatch(gpu, on_broken=lambda error: pytest.fail(str(error)))
    nvml.set(xid_number=2, xid=31)
    watch.check()
    assert watch.state.xids == {31: 1}


class Checked(Tapped):
    """A runner that can check itself; `error` is what its next check raises."""

    gpu, speed, gpu_status, error = GpuReadings(), 0.5, GpuStatus(True, 91.0), None

    def recheck(self):
        if (error := type(self).error) is not None:
            type(self).error = None
            raise error

    def watched(self, on_broken):
        raise NotImplementedError


def test_a_worker_whose_canary_drifts_is_drained(site, monkeypatch):
    """The canary is rendered for life, also when jobs wait."""
    monkeypatch.setattr(Checked, "error", DeviceDrifted("the weights in memory have changed"))
    site.settings = FAST.model_copy(update={"canary_seconds": 1e-6})
    telemetry = WorkerTelemetry()
    job = site.enqueue()
    with site.worker(Checked(lambda task, output: None), telemetry=telemetry) as worker:
        worker.thread.join(60)
    assert [error.exit_code for error in worker.failures] == [4]
    assert (worker.status.speed, worker.status.gpu) == (0.5, GpuStatus(True, 91.0))
    assert telemetry.health.readiness().read()["canary"] == "device_unusable"
    assert site.find(job).state is JobState.QUEUED


def test_a_canary_that_is_due_in_a_database_outage_does_not_end_the_worker(site, monkeypatch):
    monkeypatch.setattr(Checked, "error", QueueUnavailable("the golden clip cannot be read"))
    site.settings = FAST.model_copy(update={"canary_seconds": 1e-6})
    job = site.enqueue()
    with site.worker(Checked(lambda task, output: None)) as worker:
        ended = site.wait_for(job, lambda j: j.state.is_final or not worker.thread.is_alive())
    assert (ended.state, Checked.error) == (JobState.COMPLETED, None)


def test_a_runner_on_a_gpu_reads_it_while_it_is_watched(nvml):
    """The wiring of `filmgate worker`: the runner finds its GPU by UUID and exports its state."""
    runner = GpuRunner({"tiny": "miniature"}, PipelineSettings(device="cpu"), watch_seconds=0.01)
    assert runner.gpu_state is runner.gpu_status is None
    runner.gpu_uuid = UUID
    broken = []
    with runner.watched(broken.append):
        assert runner.gpu_state.sample.double_bit_errors == 0
        nvml.set(double_bit=2)
        wait_until(lambda: broken)
        assert not runner.gpu_state.is_healthy
        assert not runner.gpu_status.is_healthy
    assert [error.fault for error in broken] == ["double_bit_error"]
    with pytest.raises(DeviceBroken), runner.watched(broken.append):
        pytest.fail("a GPU with errors is not used")
