"""The checks of `filmgate doctor` for the pipeline: torch, GPU, driver, memory and encoders."""

from collections.abc import Iterator

import torch

from filmgate.models.pixel_formats import FORMATS
from filmgate.pipeline.denoise.acceleration import find_missing_tool
from filmgate.pipeline.encode.encoder import HARDWARE, SOFTWARE, accepts_options, probe_encoder
from filmgate.pipeline.loading.compatibility import (
    TorchBuild,
    are_gpus_hidden,
    explain_unused_gpu,
    find_facts,
    find_mismatches,
    read_gpus,
    read_torch_build,
)
from filmgate.telemetry.findings import Finding, Verdict

RECOMMENDED_FREE_BYTES = 12 << 30  # decoding Wan at 720p takes 10 GiB


def examine() -> Iterator[Finding]:
    """Findings about torch, the GPUs and the encoders of this process."""
    yield Finding("torch", Verdict.OK, f"{torch.__version__}, built for {torch.version.cuda or 'CPU'}")
    yield from _gpus()
    yield from _encoders()


def _gpus() -> Iterator[Finding]:
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            yield from _gpu(index)
        yield from examine_drivers(read_torch_build())
        yield examine_compiler()
        return
    if (problem := explain_unused_gpu()) is not None:
        message, _, remedy = problem.rpartition("; ")
        yield Finding("GPU", Verdict.FAIL, message, remedy)
        yield from examine_drivers(read_torch_build())
        return
    if are_gpus_hidden():
        yield Finding(
            "GPU",
            Verdict.WARN,
            "CUDA_VISIBLE_DEVICES hides every GPU from this process; it can run only small models",
            "unset CUDA_VISIBLE_DEVICES to use the GPUs of this machine",
        )
        return
    yield Finding(
        "GPU",
        Verdict.WARN,
        f"this machine has no NVIDIA GPU (torch {torch.__version__}); it can run only small models",
        "use a machine with an NVIDIA GPU and a CUDA build of torch for larger models",
    )


def examine_drivers(build: TorchBuild) -> Iterator[Finding]:
    """Whether driver, CUDA and compute capability of each GPU are what torch and the catalog need."""
    for index, gpu in enumerate(read_gpus()):
        subject, mismatches = f"driver of GPU {index}", list(find_mismatches(gpu, build, find_facts(gpu)))
        if not mismatches:
            yield Finding(
                subject, Verdict.OK, f"{gpu.driver}, CUDA up to {'.'.join(map(str, gpu.cuda_driver))}"
            )
        for found in mismatches:
            yield Finding(
                subject, Verdict.FAIL if found.is_fatal else Verdict.WARN, found.message, found.remedy
            )


def examine_compiler() -> Finding:
    """Whether workers can compile the denoiser's blocks."""
    if missing := find_missing_tool():
        remedy = "install gcc and Triton, or set pipeline.compile to off; the denoiser runs uncompiled"
        return Finding("torch.compile", Verdict.WARN, missing, remedy)
    return Finding("torch.compile", Verdict.OK, "found Triton and a C compiler")


def _gpu(index: int) -> Iterator[Finding]:
    properties = torch.cuda.get_device_properties(index)
    capability = f"{properties.major}.{properties.minor}"
    yield Finding(f"GPU {index}", Verdict.OK, f"{properties.name}, compute capability {capability}")
    free, total = torch.cuda.mem_get_info(index)
    is_enough = free >= RECOMMENDED_FREE_BYTES
    yield Finding(
        f"GPU {index} memory",
        Verdict.OK if is_enough else Verdict.WARN,
        f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free",
        "" if is_enough else "stop other programs on this GPU, or decoding above 480p is tiled and slower",
    )


def _encoders() -> Iterator[Finding]:
    for codec, name in SOFTWARE.items():
        problems = _probe_formats(codec, name)
        remedy = "reinstall PyAV from its wheel: pip install --force-reinstall av"
        if problem := next(filter(None, problems.values()), None):
            yield Finding(f"{codec} encoder", Verdict.FAIL, f"{name}: {problem}", remedy)
        else:
            yield Finding(f"{codec} encoder", Verdict.OK, _describe_formats(name, problems))
    for codec, name in HARDWARE.items():
        yield Finding(f"{codec} NVENC", Verdict.OK, _describe_nvenc(codec, name))


def _probe_formats(codec: str, name: str) -> dict[str, str | None]:
    """What keeps the encoder from encoding a frame in each pixel format of the codec, or None."""
    return {each: probe_encoder(codec, name, each) for each in FORMATS[codec]}


def _describe_formats(name: str, problems: dict[str, str | None]) -> str:
    encoded = ", ".join(each for each, problem in problems.items() if problem is None)
    failed = "".join(f"; not {each}: {problem}" for each, problem in problems.items() if problem is not None)
    return f"{name} encoded frames in {encoded}{failed}"


def _describe_nvenc(codec: str, name: str) -> str:
    """The formats in which NVENC encodes a frame here; without any, whether FFmpeg accepts its options."""
    problems = _probe_formats(codec, name)
    if None in problems.values():
        return _describe_formats(name, problems)
    problem = next(iter(problems.values()))
    proven = "FFmpeg accepts its options" if accepts_options(codec, name) else "FFmpeg has no such encoder"
    return f"{name} is not available on this machine ({problem}); using {SOFTWARE[codec]}; {proven}"
