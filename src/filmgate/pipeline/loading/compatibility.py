"""Whether driver, CUDA, torch and GPU fit together; if they do not, what to change.

A GPU that torch cannot use must be an error: rendering on the CPU instead works, but so slowly that every job
is late, and no log line says why.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from filmgate.catalog.gpus import Gpu as CatalogGpu
from filmgate.catalog.loader import load_catalog
from filmgate.errors import UsageError
from filmgate.telemetry.nvml import GpuModel, find_gpu, list_gpus, opened_nvml

PCI_DEVICES = Path("/sys/bus/pci/devices")
_NVIDIA, _DISPLAY_CLASSES = "0x10de", ("0x0300", "0x0302")


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """What the installed torch was built for. `cuda` is None for a CPU build."""

    version: str
    cuda: tuple[int, int] | None
    architectures: tuple[str, ...]  # sm_90, compute_90 ...


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Two parts that do not fit. `is_fatal`: the GPU cannot be used at all."""

    message: str
    remedy: str
    is_fatal: bool = True


def read_torch_build() -> TorchBuild:
    cuda = _version(torch.version.cuda) if torch.version.cuda else None
    return TorchBuild(torch.__version__, cuda, tuple(torch.cuda.get_arch_list()) if cuda else ())


def read_gpus() -> list[GpuModel]:
    """The GPUs that the NVIDIA driver of this machine lists."""
    with opened_nvml() as has_nvml:
        return [gpu.describe() for gpu in list_gpus()] if has_nvml else []


def read_gpu(uuid: str) -> GpuModel | None:
    """The GPU or MIG device with this UUID; None if the driver does not know it."""
    with opened_nvml() as has_nvml:
        gpu = find_gpu(uuid) if has_nvml else None
        return gpu.describe() if gpu is not None else None


def find_mig_uuid() -> str | None:
    """The MIG device in CUDA_VISIBLE_DEVICES. CUDA uses only the first one."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0].strip()
    return first if first.startswith("MIG-") else None


def are_gpus_hidden() -> bool:
    """Whether CUDA_VISIBLE_DEVICES hides every GPU from this process."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in {"", "-1"}


def count_pci_gpus() -> int:
    """NVIDIA GPUs on the bus, also those without a driver; 0 where the bus cannot be read."""
    if not PCI_DEVICES.is_dir():
        return 0
    return sum(_is_gpu(device) for device in PCI_DEVICES.iterdir())


def find_facts(gpu: GpuModel) -> CatalogGpu | None:
    """The entry of this GPU in the catalog; None if it has none."""
    try:
        return load_catalog().gpu(gpu.name.removeprefix("NVIDIA "))
    except UsageError:
        return None


def find_mismatches(gpu: GpuModel, build: TorchBuild, facts: CatalogGpu | None) -> Iterator[Mismatch]:
    """Every reason why this torch cannot use this GPU, or should not with this driver."""
    if build.cuda is None:
        yield Mismatch(f"torch {build.version} is a CPU build", "install a CUDA build of torch")
        return
    if gpu.cuda_driver < (build.cuda[0], 0):
        yield Mismatch(
            f"driver {gpu.driver} supports CUDA up to {_dotted(gpu.cuda_driver)}, and torch {build.version} "
            f"is built for CUDA {_dotted(build.cuda)}",
            f"update the NVIDIA driver, or install a torch that is built for CUDA {gpu.cuda_driver[0]}",
        )
    if not _has_kernels(gpu.capability, build.architectures):
        newest = facts.min_cuda if facts is not None and facts.min_cuda else "a newer version"
        yield Mismatch(
            f"torch {build.version} has no kernels for compute capability {_dotted(gpu.capability)}; it has "
            + ", ".join(build.architectures),
            f"install a torch that is built for CUDA {newest} or later",
        )
    if facts is not None:
        yield from _compare_with_catalog(gpu, build.cuda, facts)


def _compare_with_catalog(gpu: GpuModel, cuda: tuple[int, int], facts: CatalogGpu) -> Iterator[Mismatch]:
    if facts.min_cuda is not None and cuda < _version(facts.min_cuda):
        yield Mismatch(
            f"{facts.product} needs CUDA {facts.min_cuda}, and torch is built for {_dotted(cuda)}",
            f"install a torch that is built for CUDA {facts.min_cuda} or later",
        )
    if facts.min_driver is not None and _branch(gpu.driver) < _branch(facts.min_driver):
        yield Mismatch(
            f"{facts.product} needs driver {facts.min_driver} or later, and {gpu.driver} is installed",
            f"update the NVIDIA driver to branch {facts.min_driver}",
            is_fatal=False,
        )


def explain_unused_gpu() -> str | None:
    """Why the NVIDIA GPU of this machine cannot be used, with the remedy; None if it has none or hides it."""
    if are_gpus_hidden():
        return None
    build = read_torch_build()
    for gpu in read_gpus():
        fatal = (each for each in find_mismatches(gpu, build, find_facts(gpu)) if each.is_fatal)
        found = next(fatal, Mismatch("CUDA does not start", "run `filmgate doctor` and `nvidia-smi`"))
        return f"this machine has an NVIDIA GPU ({gpu.name}), but {found.message}; {found.remedy}"
    if count_pci_gpus():
        return (
            "this machine has an NVIDIA GPU, but its driver does not answer; install the NVIDIA driver, or "
            "give the container access to the GPU"
        )
    return None


def _has_kernels(capability: tuple[int, int], architectures: tuple[str, ...]) -> bool:
    """Machine code runs on later GPUs of the same major version, PTX on all later ones."""
    major, minor = capability
    for architecture in architectures:
        kind, _, digits = architecture.partition("_")
        match = re.fullmatch(r"(\d+)(\d)[af]?", digits)
        if match is None:
            continue
        built = (int(match[1]), int(match[2]))
        if kind == "sm" and built[0] == major and built[1] <= minor:
            return True
        if kind == "compute" and built <= capability:
            return True
    return False


def _is_gpu(device: Path) -> bool:
    try:
        vendor, kind = (device / "vendor").read_text().strip(), (device / "class").read_text().strip()
    except OSError:
        return False
    return vendor == _NVIDIA and kind.startswith(_DISPLAY_CLASSES)


def _version(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return int(major), int(re.match(r"\d*", minor)[0] or 0)  # type: ignore[index]


def _branch(driver: str) -> int:
    """The branch of a driver: 570 for `570.91.07` and for `R570`."""
    return int(driver.removeprefix("R").partition(".")[0] or 0)


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
