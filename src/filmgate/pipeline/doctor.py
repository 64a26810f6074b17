"""The checks of `filmgate doctor` for the pipeline: torch, GPU, driver, memory and encoders."""

from collections.abc import Iterator

import torch

from filmgate.pipeline.encode.encoder import HARDWARE, SOFTWARE, probe_encoder
from filmgate.pipeline.loading.compilation import find_missing_tool
from filmgate.telemetry.findings import Finding, Verdict

RECOMMENDED_FREE_BYTES = 12 << 30  # decoding Wan at 720p takes 10 GiB


def examine() -> Iterator[Finding]:
    """Findings about torch, the GPUs and the encoders of this process."""
    yield Finding("torch", Verdict.OK, f"{torch.__version__}, built for {torch.version.cuda or 'CPU'}")
    yield from _gpus()
    yield from _encoders()


def _gpus() -> Iterator[Finding]:
    if torch.version.cuda is None:
        yield Finding(
            "GPU",
            Verdict.WARN,
            "this torch is a CPU build; it can run only small models",
            "install a CUDA build of torch",
        )
        return
    if not torch.cuda.is_available():
        remedy = "check that nvidia-smi lists a GPU and that the driver is recent enough for this torch"
        yield Finding("GPU", Verdict.WARN, f"CUDA {torch.version.cuda} finds no usable GPU", remedy)
        return
    for index in range(torch.cuda.device_count()):
        yield from _gpu(index)
    yield examine_compiler()


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
    yield _driver()
    free, total = torch.cuda.mem_get_info(index)
    is_enough = free >= RECOMMENDED_FREE_BYTES
    yield Finding(
        f"GPU {index} memory",
        Verdict.OK if is_enough else Verdict.WARN,
        f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free",
        "" if is_enough else "stop other programs on this GPU, or decoding above 480p is tiled and slower",
    )


def _driver() -> Finding:
    import pynvml

    try:
        pynvml.nvmlInit()
        version = str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError as exc:
        return Finding("driver", Verdict.WARN, f"NVML failed: {exc}", "reinstall the NVIDIA driver")
    return Finding("driver", Verdict.OK, version)


def _encoders() -> Iterator[Finding]:
    for codec, name in SOFTWARE.items():
        problem = probe_encoder(codec, name)
        remedy = "reinstall PyAV from its wheel: pip install --force-reinstall av"
        if problem:
            yield Finding(f"{codec} encoder", Verdict.FAIL, f"{name}: {problem}", remedy)
        else:
            yield Finding(f"{codec} encoder", Verdict.OK, f"{name} encoded a frame")
    for codec, name in HARDWARE.items():
        problem = probe_encoder(codec, name)
        message = f"{name}: {problem}; {SOFTWARE[codec]} is used" if problem else f"{name} encoded a frame"
        yield Finding(f"{codec} NVENC", Verdict.OK, message)
