"""A stand-in for the NVIDIA driver's NVML library, built from fake_nvml.c and driven by a file."""

import ctypes
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "fake_nvml.c"
UUID = "GPU-00000000-0000-0000-0000-000000000001"
MIG_UUID = "MIG-00000000-0000-0000-0000-000000000102"  # the second MIG device of that GPU


class FakeNvml:
    """The state of the GPUs that NVML reports. `set` changes it while the code under test runs."""

    def __init__(self, file):
        self.file = file
        self.state = {"init": 0}
        self.set()

    def set(self, **state):
        self.state |= state
        staged = self.file.with_suffix(".new")
        staged.write_text("".join(f"{key} {value}\n" for key, value in self.state.items()))
        staged.rename(self.file)


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory):
    """The library, loaded under the name by which nvidia-ml-py asks for it."""
    library = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    command = ["cc", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-o", str(library), str(SOURCE)]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


@pytest.fixture
def nvml(nvml_library, tmp_path, monkeypatch):
    """One healthy GPU."""
    import pynvml

    file = tmp_path / "nvml.txt"
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setenv("FAKE_NVML", str(file))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")  # tests/conftest.py hides the GPUs of this machine
    return FakeNvml(file)
