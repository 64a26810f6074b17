"""GPUs through the real nvidia-ml-py, on a stand-in for the driver's library."""

import pytest
from prometheus_client import CollectorRegistry

from filmgate.errors import DeviceLost
from filmgate.telemetry.gpu_metrics import GpuCollector
from filmgate.telemetry.metrics import METRICS, Source
from filmgate.telemetry.nvml import find_gpu, list_gpus, opened_nvml
from filmgate.worker.gpu_watch import GpuWatch
from tests.nvml import MIG_UUID, UUID


@pytest.fixture
def gpu(nvml):
    with opened_nvml() as has_nvml:
        assert has_nvml
        yield find_gpu(UUID)


def test_a_reading_has_what_dcgm_exports(gpu, nvml):
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


@pytest.fixture
def mig(nvml):
    nvml.set(mig=3)
    with opened_nvml():
        yield find_gpu(MIG_UUID)


def test_a_mig_device_has_its_own_memory_and_the_rest_of_its_gpu(mig, nvml):
    nvml.set(temperature=71, clock_reasons=0x40, remap_failed=1, single_bit=3, double_bit_ever=2)
    sample = mig.read()
    assert mig.uuid == MIG_UUID
    assert mig.describe().name == "NVIDIA H200"
    assert (sample.memory_total_bytes, sample.memory_used_bytes) == (16 << 30, 1000 << 20)
    assert (sample.temperature_celsius, sample.power_watts) == (71, 400.0)
    assert sample.clock_events == {"hw_thermal"}
    assert sample.rows.has_failed
    assert sample.utilization is None, "a GPU before Hopper does not count the cycles of a MIG device"
    assert dict(sample.ecc_errors) == {
        ("single_bit", "volatile"): 3,
        ("single_bit", "aggregate"): 3,
        ("double_bit", "volatile"): 0,
        ("double_bit", "aggregate"): 2,
    }


def test_the_utilisation_of_a_mig_device_is_the_mean_between_two_readings(mig, nvml):
    nvml.set(mig_utilization=20)
    assert mig.read().utilization is None, "there is nothing to compare with"
    assert mig.read().utilization == pytest.approx(0.22), "20 %, and 2 for the GPU instance of the stand-in"
    nvml.set(mig_utilization=71)
    assert mig.read().utilization == pytest.approx(0.73)


@pytest.mark.parametrize("prefix", ["MIG-", "GPU-", ""])
def test_a_mig_device_is_found_by_the_uuid_that_torch_gives(mig, prefix):
    found = find_gpu(prefix + MIG_UUID.removeprefix("MIG-"))
    assert found.uuid == MIG_UUID


@pytest.mark.parametrize(
    ("fault", "state"),
    [("double_bit_error", {"double_bit": 1}), ("row_remap_failure", {"remap_failed": 1})],
)
def test_an_error_of_the_gpu_is_an_error_of_its_mig_devices(mig, nvml, fault, state):
    broken = []
    watch = GpuWatch(mig, broken.append)
    watch.check()
    assert not broken
    nvml.set(**state)
    watch.check()
    assert [error.fault for error in broken] == [fault]
    assert MIG_UUID in str(broken[0])


def test_an_xid_event_of_another_mig_device_stops_nothing(mig, nvml):
    broken = []
    watch = GpuWatch(mig, broken.append)
    nvml.set(xid_number=11, xid=94, xid_instance=1)
    watch.check()
    assert (broken, watch.state.xids) == ([], {})
    nvml.set(xid_number=12, xid=94, xid_instance=2)
    watch.check()
    assert [error.fault for error in broken] == ["double_bit_error"]


def test_every_gpu_and_mig_device_of_the_machine_can_be_found(nvml):
    nvml.set(count=2, mig=1)
    with opened_nvml():
        assert find_gpu("MIG-00000000-0000-0000-0000-000000000201").describe().capability == (9, 0)
        assert find_gpu("GPU-00000000-0000-0000-0000-000000000002") is not None
        assert find_gpu("GPU-00000000-0000-0000-0000-000000000003") is None
