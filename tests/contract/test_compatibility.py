"""No silent fallback to the CPU: start-up and `doctor` report a GPU that torch cannot use, and the remedy."""

from types import SimpleNamespace

import pytest
import torch

from filmgate.errors import DeviceError
from filmgate.pipeline.doctor import examine, examine_drivers
from filmgate.pipeline.loading import compatibility, memory
from filmgate.pipeline.loading.compatibility import (
    TorchBuild,
    count_pci_gpus,
    find_facts,
    find_mismatches,
    read_gpu,
    read_gpus,
)
from filmgate.pipeline.loading.memory import choose_device
from filmgate.settings import PipelineSettings
from filmgate.telemetry.findings import Verdict
from filmgate.telemetry.nvml import GpuModel
from tests.nvml import MIG_UUID, UUID

BUILD = TorchBuild("2.11.0+cu128", (12, 8), ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"))
H200 = GpuModel("GPU-1", "NVIDIA H200", "570.91.07", (12, 8), (9, 0))
RTX_PRO = GpuModel("GPU-2", "NVIDIA RTX PRO 6000 Blackwell Server Edition", "595.91.07", (13, 0), (12, 0))
needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")


def messages(gpu, build):
    return [found.message for found in find_mismatches(gpu, build, find_facts(gpu))]


@pytest.mark.parametrize("gpu", [H200, RTX_PRO], ids=["H200", "RTX PRO 6000"])
def test_a_current_machine_fits(gpu):
    assert find_facts(gpu) is not None
    assert messages(gpu, BUILD) == []


@pytest.mark.parametrize(
    ("gpu", "build", "message", "remedy"),
    [
        (H200, TorchBuild("2.11.0+cpu", None, ()), "is a CPU build", "install a CUDA build of torch"),
        (
            GpuModel("GPU-1", "NVIDIA H200", "535.104", (12, 2), (9, 0)),
            TorchBuild("2.13.0+cu130", (13, 0), BUILD.architectures),
            "supports CUDA up to 12.2, and torch 2.13.0+cu130 is built for CUDA 13.0",
            "update the NVIDIA driver, or install a torch that is built for CUDA 12",
        ),
        (
            RTX_PRO,
            TorchBuild("2.6.0+cu124", (12, 4), ("sm_80", "sm_90", "compute_130")),
            "no kernels for compute capability 12.0",
            "install a torch that is built for CUDA 12.8 or later",
        ),
        (
            GpuModel("GPU-2", RTX_PRO.name, "550.1", (12, 8), (12, 0)),
            BUILD,
            "needs driver R570 or later, and 550.1 is installed",
            "update the NVIDIA driver to branch R570",
        ),
    ],
    ids=["CPU build", "old driver", "no kernels", "old branch"],
)
def test_a_mismatch_names_the_fix(gpu, build, message, remedy):
    """Silent driver incompatibilities."""
    found = list(find_mismatches(gpu, build, find_facts(gpu)))
    assert any(message in each.message and each.remedy == remedy for each in found)


def test_kernels_run_on_later_gpus_of_their_generation_and_ptx_on_all_later_ones():
    ada = GpuModel("GPU-3", "NVIDIA L40S", "570.1", (12, 8), (8, 9))
    assert messages(ada, TorchBuild("2.6", (12, 4), ("sm_80",))) == []
    assert messages(H200, TorchBuild("2.6", (12, 4), ("sm_80", "compute_80"))) == []
    assert len(messages(H200, TorchBuild("2.6", (12, 4), ("sm_80",)))) == 1


@needs_no_gpu
@pytest.mark.parametrize("wanted", ["auto", "cuda"])
@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (TorchBuild("2.13.0+cpu", None, ()), "torch .* is a CPU build; install a CUDA build"),
        (BUILD, "CUDA does not start; run `filmgate doctor`"),
    ],
    ids=["CPU build", "CUDA build"],
)
def test_a_machine_with_a_gpu_does_not_render_on_the_cpu_unless_told_to(
    nvml, monkeypatch, wanted, build, reason
):
    monkeypatch.setattr(compatibility, "read_torch_build", lambda: build)
    with pytest.raises(DeviceError, match=f"NVIDIA H200.*{reason}"):
        choose_device(wanted)
    assert choose_device("cpu").type == "cpu"


@needs_no_gpu
def test_a_gpu_without_a_driver_is_an_error_too(nvml, tmp_path, monkeypatch):
    nvml.set(init=9)
    for name, vendor, kind in (("gpu", "0x10de", "0x030200"), ("audio", "0x10de", "0x040300")):
        (tmp_path / "pci" / name).mkdir(parents=True)
        (tmp_path / "pci" / name / "vendor").write_text(f"{vendor}\n")
        (tmp_path / "pci" / name / "class").write_text(f"{kind}\n")
    monkeypatch.setattr(compatibility, "PCI_DEVICES", tmp_path / "pci")
    assert count_pci_gpus() == 1
    with pytest.raises(DeviceError, match="its driver does not answer; install the NVIDIA driver"):
        choose_device("auto")


@needs_no_gpu
def test_a_machine_without_a_gpu_renders_on_the_cpu(nvml, tmp_path, monkeypatch):
    nvml.set(init=9)
    monkeypatch.setattr(compatibility, "PCI_DEVICES", tmp_path)
    assert choose_device("auto").type == "cpu"


@needs_no_gpu
@pytest.mark.parametrize("hidden", ["", "-1"])
def test_hiding_all_gpus_is_a_choice_of_the_cpu_and_doctor_says_so(nvml, monkeypatch, hidden):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert choose_device("auto").type == "cpu"
    (gpu,) = (finding for finding in examine() if finding.subject == "GPU")
    assert (gpu.verdict, gpu.message.partition(" hides")[0]) == (Verdict.WARN, "CUDA_VISIBLE_DEVICES")
    assert "unset CUDA_VISIBLE_DEVICES" in gpu.remedy
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(DeviceError, match="NVIDIA H200"):
        choose_device("auto")


def test_doctor_reports_every_gpu(nvml):
    nvml.set(count=2, driver=570, cuda=12080)
    assert [gpu.capability for gpu in read_gpus()] == [(9, 0), (9, 0)]
    assert [finding.verdict for finding in examine_drivers(BUILD)] == [Verdict.OK] * 2
    (finding, _) = examine_drivers(TorchBuild("2.13.0+cu130", (13, 0), ("sm_90",)))
    assert (finding.subject, finding.verdict) == ("driver of GPU 0", Verdict.FAIL)


def test_the_mig_device_that_cuda_was_given_is_the_one_that_is_watched(nvml, monkeypatch):
    """The runner asks for its GPU by this UUID; the mismatches are those of the whole GPU."""
    nvml.set(mig=3)
    monkeypatch.setattr(memory, "choose_device", lambda _name: torch.device("cuda"))
    properties = SimpleNamespace(uuid=MIG_UUID.removeprefix("MIG-"))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: properties)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert memory.find_gpu_uuid(PipelineSettings()) == MIG_UUID
    properties.uuid = UUID.removeprefix("GPU-")  # as CUDA 11 gives it: the UUID of the whole GPU
    assert memory.find_gpu_uuid(PipelineSettings()) == UUID
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", MIG_UUID)
    assert memory.find_gpu_uuid(PipelineSettings()) == MIG_UUID
    assert read_gpu(MIG_UUID).name == "NVIDIA H200"
