"""What `filmgate doctor` asks the pipeline: torch, GPU, driver, memory and encoders that really encode."""

from collections.abc import Iterator

import torch

from filmgate.pipeline.encode.encoder import HARDWARE, SOFTWARE, probe_encoder
from filmgate.pipeline.loading.compilation import find_obstacle
from filmgate.telemetry.findings import Finding, Verdict

COMFORTABLE_BYTES = 12 << 30  # a 720p Wan decode holds 10 GiB


def examine() -> Iterator[Finding]:
    """Findings about this process's torch, GPU and encoders."""
    yield Finding("torch", Verdict.OK, f"{torch.__version__}, built for {torch.version.cuda or 'CPU'}")
    yield from _gpus()
    yield from _encoders()


def _gpus() -> Iterator[Finding]:
    if torch.version.cuda is None:
        yield Finding(
            "GPU",
            Verdict.WARN,
            "this torch is a CPU build: small models only",
            "pip install a CUDA build of torch",
        )
        return
    if not torch.cuda.is_available():
        remedy = "check that nvidia-smi lists a GPU and that its driver is recent enough for this torch"
        yield Finding("GPU", Verdict.WARN, f"none that CUDA {torch.version.cuda} can use", remedy)
        return
    for index in range(torch.cuda.device_count()):
        yield from _gpu(index)
    yield examine_compiler()


def examine_compiler() -> Finding:
    """Whether workers can compile the denoiser's blocks."""
    if obstacle := find_obstacle():
        remedy = (
            "install gcc and Triton, or set pipeline.compile to off; the denoiser runs uncompiled until then"
        )
        return Finding("torch.compile", Verdict.WARN, obstacle, remedy)
    return Finding("torch.compile", Verdict.OK, "Triton and a C compiler are there")


def _gpu(index: int) -> Iterator[Finding]:
    properties = torch.cuda.get_device_properties(index)
    capability = f"{properties.major}.{properties.minor}"
    yield Finding(f"GPU {index}", Verdict.OK, f"{properties.name}, compute capability {capability}")
    yield _driver()
    free, total = torch.cuda.mem_get_info(index)
    is_enough = free >= COMFORTABLE_BYTES
    yield Finding(
        f"GPU {index} memory",
        Verdict.OK if is_enough else Verdict.WARN,
        f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free",
        "" if is_enough else "end other GPU programs, or expect tiled decoding above 480p",
    )


def _driver() -> Finding:
    import pynvml

    try:
        pynvml.nvmlInit()
        version = str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError as exc:
        return Finding("driver", Verdict.WARN, f"NVML does not answer: {exc}", "reinstall the NVIDIA driver")
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
        words = f"{name}: {problem}; {SOFTWARE[codec]} is used" if problem else f"{name} encoded a frame"
        yield Finding(f"{codec} NVENC", Verdict.OK, words)
