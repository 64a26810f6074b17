"""What a worker reports: how its device spends its time, whether it is ready, what went wrong."""

import pytest
from prometheus_client import CollectorRegistry

from filmgate.jobs import Reason
from filmgate.telemetry.readiness import is_ready
from filmgate.worker.health import MANAGED_PARTS, Part, WorkerHealth
from filmgate.worker.metrics import WorkerMetrics
from filmgate.worker.turns import Device, DeviceMeter


@pytest.fixture
def registry():
    return CollectorRegistry()


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_busy_idle_and_gaps_are_told_apart(registry):
    """Time without a job is idle; only time in which a job was waiting is a gap between clips."""
    clock = Clock()
    meter = DeviceMeter(registry, clock)
    device = Device(meter)
    meter.start()
    clock.now += 5
    meter.wait()  # no job was waiting
    first = device.admit()
    clock.now += 20
    first.end()
    clock.now += 0.2
    second = device.admit()
    clock.now += 3
    values = {
        name: registry.get_sample_value(f"filmgate_worker_{name}")
        for name in (
            "busy",
            "busy_seconds_total",
            "idle_seconds_total",
            "gap_seconds_sum",
            "gap_seconds_count",
        )
    }
    assert values["busy"] == 1.0, "the second job is on the device"
    assert values["busy_seconds_total"] == pytest.approx(23.0)
    assert values["idle_seconds_total"] == pytest.approx(5.2)
    assert (values["gap_seconds_sum"], values["gap_seconds_count"]) == (pytest.approx(0.2), 1.0)
    second.end()
    assert registry.get_sample_value("filmgate_worker_busy") == 0.0


def test_out_of_memory_is_counted_whether_or_not_the_ladder_helped(registry):
    metrics = WorkerMetrics(registry)
    metrics.stepped_down("wan", "tiles of 256")
    metrics.attempt_failed("wan", "ab12" * 16, Reason.OUT_OF_MEMORY)
    metrics.attempt_failed("wan", "ab12" * 16, Reason.DECODE_FAILED)
    assert registry.get_sample_value("filmgate_out_of_memory_total", {"model": "wan"}) == 2.0
    step = {"model": "wan", "rung": "tiles of 256"}
    assert registry.get_sample_value("filmgate_memory_ladder_steps_total", step) == 1.0
    failed = {"model": "wan", "version": "ab12ab12ab12", "reason": "decode_failed"}
    assert registry.get_sample_value("filmgate_attempts_failed_total", failed) == 1.0


def test_a_worker_is_ready_between_its_canary_and_its_drain(registry):
    health, called = WorkerHealth(), []
    health.on_ready(lambda: called.append("cli"))
    health.on_ready(lambda: called.append("metrics"))
    health.export(registry)

    def ready():
        return registry.get_sample_value("filmgate_worker_ready")

    assert (ready(), set(health.readiness().read().values())) == (0.0, {"starting"})
    health.mark_ready()
    assert (ready(), called) == (1.0, ["cli", "metrics"])
    health.mark(Part.GPU, "double_bit_error")
    assert (ready(), health.readiness().read()["gpu"]) == (0.0, "double_bit_error")
    health.mark(Part.GPU, "ok")
    health.mark_draining()
    assert (ready(), health.readiness().read()["leases"]) == (0.0, "draining")


def test_a_managed_worker_needs_no_gpu_to_be_ready():
    health = WorkerHealth(MANAGED_PARTS)
    assert set(health.readiness().read()) == {"provider", "leases"}
    health.mark_ready()
    assert is_ready(health.readiness().read())
