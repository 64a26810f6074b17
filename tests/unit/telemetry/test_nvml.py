"""GPUs through the real nvidia-ml-py, on a stand-in for the driver's library."""

import pytest
from prometheus_client import CollectorRegistry

from filmgate.telemetry.gpu_metrics import GpuCollector
from filmgate.telemetry.metrics import METRICS, Source
from filmgate.telemetry.nvml import DeviceLost, find_gpu, list_gpus, opened_nvml
from filmgate.worker.gpu_watch import GpuWatch
from tests.nvml import UUID


@pytest.fixture
def gpu(nvml):
    with opened_nvml() as has_nvml:
        assert has_nvml
        yield find_gpu(UUID)


def test_a_reading_has_what_dcgm_exports(gpu, nvml):
    """S0-64, S1-49, S1-52 to S1-55, S2-56."""
    nvml.set(temperature=84, clock_reasons=0x40, single_bit=7, double_bit_ever=2, remapped_uncorrectable=1)
    sample = gpu.read()
    assert (sample.utilization, sample.memory_used_bytes) == (0.97, 1000 << 20)
    assert (sample.temperature_celsius, sample.power_watts, sample.power_limit_watts) == (84, 400.0, 700.0)
    assert sample.clock_events == {"hw_thermal"}
    assert dict(sample.ecc_errors)["single_bit", "volatile"] == 7
    assert (sample.double_bit_errors, sample.rows.uncorrectable) == (0, 1)


def test_every_gpu_metric_of_the_list_is_exported(gpu, nvml):
    watch = GpuWatch(gpu, on_broken=lambda error: pytest.fail(str(error)))
    nvml.set(xid_number=1, xid=13)
    watch.check()
    registry = CollectorRegistry()
    registry.register(GpuCollector(lambda: watch.state))
    exported = {family.name: family for family in registry.collect()}
    listed = {metric.name.removesuffix("_total"): metric for metric in METRICS if metric.source is Source.GPU}
    # The stand-in, like GPUs without HBM, reports no temperature of the memory.
    assert exported.keys() == listed.keys() - {"filmgate_gpu_memory_temperature_celsius"}
    for name, family in exported.items():
        assert {tuple(sample.labels) for sample in family.samples} == {listed[name].labels}
    assert registry.get_sample_value("filmgate_gpu_xid_errors_total", {"gpu": UUID, "xid": "13"}) == 1.0


def test_a_lost_gpu_raises(gpu, nvml):
    nvml.set(error=15)
    with pytest.raises(DeviceLost, match="GPU is lost"):
        gpu.read()


def test_a_machine_without_a_driver_has_no_gpus(nvml):
    nvml.set(init=9)
    with opened_nvml() as has_nvml:
        assert not has_nvml


def test_gpus_are_described(nvml):
    nvml.set(count=2, driver=570, cuda=12080)
    with opened_nvml():
        models = [gpu.describe() for gpu in list_gpus()]
    assert [model.uuid[-1] for model in models] == ["1", "2"]
    assert (models[0].driver, models[0].cuda_driver, models[0].capability) == ("570.91.07", (12, 8), (9, 0))
