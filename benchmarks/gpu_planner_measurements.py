"""Measures video models of full size with random weights on one GPU: forward pass, decode and peak memory.

The last line of output is one JSON object, which is also written to $OUT/planner_h200.json if OUT is set.
Copy the file to src/filmgate/catalog/data/measured/ and validate the planner with it:
filmgate plan validate --docs docs/planner-validation.md \\
    --calibration src/filmgate/catalog/data/calibration.json
`--tiny` runs toy models on a CPU, only to check the script.
"""

import argparse
import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderKLCogVideoX,
    AutoencoderKLLTXVideo,
    AutoencoderKLWan,
    CogVideoXTransformer3DModel,
    LTXVideoTransformer3DModel,
    WanTransformer3DModel,
)

REPEATS = 3
DTYPE = torch.bfloat16


@dataclass(frozen=True)
class Shape:
    """One clip in pixels and frames."""

    width: int
    height: int
    frames: int


@dataclass(frozen=True)
class Part:
    """A network: its class, the released configuration, and a toy configuration for a CPU."""

    make: Callable[..., torch.nn.Module]
    released: Mapping[str, Any]
    toy: Mapping[str, Any]


@dataclass(frozen=True)
class Subject:
    """A model and the shapes to run; `ratios` are latent channels, time ratio and space ratio."""

    model: str
    denoiser: Part
    vae: Part
    ratios: tuple[int, int, int]
    inputs: Callable[[torch.Tensor], dict[str, Any]]
    shapes: tuple[Shape, ...]
    toy_shape: Shape

    def latents(self, shape: Shape) -> torch.Tensor:
        channels, time_ratio, space_ratio = self.ratios
        steps = (shape.frames - 1) // time_ratio + 1
        return torch.randn(1, channels, steps, shape.height // space_ratio, shape.width // space_ratio)


def wan_inputs(latents: torch.Tensor) -> dict[str, Any]:
    return {"hidden_states": latents, "encoder_hidden_states": torch.randn(1, 512, 4096)}


def ltx_inputs(latents: torch.Tensor) -> dict[str, Any]:
    _, channels, frames, height, width = latents.shape
    return {
        "hidden_states": latents.permute(0, 2, 3, 4, 1).reshape(1, frames * height * width, channels),
        "encoder_hidden_states": torch.randn(1, 128, 4096),
        "encoder_attention_mask": torch.ones(1, 128),
        "num_frames": frames,
        "height": height,
        "width": width,
        "rope_interpolation_scale": (8 / 25, 32, 32),
    }


def cog_inputs(latents: torch.Tensor) -> dict[str, Any]:
    return {
        "hidden_states": latents.transpose(1, 2).contiguous(),
        "encoder_hidden_states": torch.randn(1, 226, 4096),
    }


TOY_WIDTHS = (8, 8, 8, 8)
SUBJECTS = (
    Subject(
        "wan2.1-t2v-1.3b",
        Part(
            WanTransformer3DModel,
            {"num_attention_heads": 12, "ffn_dim": 8960, "num_layers": 30},
            {"num_attention_heads": 2, "attention_head_dim": 12, "ffn_dim": 32, "num_layers": 1},
        ),
        Part(AutoencoderKLWan, {}, {"base_dim": 8, "num_res_blocks": 1}),
        (16, 4, 8),
        wan_inputs,
        (Shape(832, 480, 81), Shape(1280, 720, 81)),
        Shape(64, 32, 9),
    ),
    Subject(
        "ltx-video-2b-0.9.0",
        Part(
            LTXVideoTransformer3DModel,
            {},
            {"num_attention_heads": 2, "attention_head_dim": 16, "cross_attention_dim": 32, "num_layers": 1},
        ),
        Part(
            AutoencoderKLLTXVideo,
            {},
            {"block_out_channels": TOY_WIDTHS, "decoder_block_out_channels": TOY_WIDTHS},
        ),
        (128, 8, 32),
        ltx_inputs,
        (Shape(768, 512, 121),),
        Shape(64, 64, 17),
    ),
    Subject(
        "cogvideox-2b",
        Part(
            CogVideoXTransformer3DModel,
            {},
            {
                "num_attention_heads": 2,
                "attention_head_dim": 16,
                "num_layers": 1,
                "sample_width": 8,
                "sample_height": 8,
                "sample_frames": 9,
            },
        ),
        Part(
            AutoencoderKLCogVideoX,
            {},
            {"block_out_channels": TOY_WIDTHS, "layers_per_block": 1, "norm_num_groups": 2},
        ),
        (16, 4, 8),
        cog_inputs,
        (Shape(720, 480, 49),),
        Shape(64, 64, 9),
    ),
)


@contextmanager
def built_in(device: str, dtype: torch.dtype) -> Iterator[None]:
    """Creates parameters on the device in their dtype, which takes half the memory of casting them later."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            yield
    finally:
        torch.set_default_dtype(before)


def on_device(value: Any, device: str) -> Any:
    return value.to(device, DTYPE) if isinstance(value, torch.Tensor) else value


def time_once(call: Callable[[], object], device: str) -> float:
    """Seconds of one call, by CUDA events or, on a CPU, by the wall clock."""
    if device == "cpu":
        started = time.perf_counter()
        call()
        return time.perf_counter() - started
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1000


def measure(call: Callable[[], object], device: str) -> dict[str, Any]:
    """The median of three calls after a warm-up, and their peak memory including weights."""
    call()
    if device != "cpu":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    samples = [time_once(call, device) for _ in range(REPEATS)]
    peak = None if device == "cpu" else torch.cuda.max_memory_allocated()
    return {"seconds": statistics.median(samples), "samples": samples, "peak_bytes": peak}


def weight_bytes(module: torch.nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in module.parameters())


def release(device: str) -> None:
    gc.collect()
    if device != "cpu":
        torch.cuda.empty_cache()


def measure_stage(subject: Subject, stage: str, device: str) -> list[dict[str, Any]]:
    """Every shape of one stage of one model. The weights of the other stage are not on the device."""
    part = subject.denoiser if stage == "forward" else subject.vae
    is_toy = device == "cpu"
    with built_in(device, DTYPE):
        module = part.make(**(part.toy if is_toy else part.released)).eval()
    runs = [
        measure_shape(subject, stage, shape, module)
        for shape in ((subject.toy_shape,) if is_toy else subject.shapes)
    ]
    del module
    release(device)
    return runs


def measure_shape(subject: Subject, stage: str, shape: Shape, module: torch.nn.Module) -> dict[str, Any]:
    device = next(module.parameters()).device.type
    latents = subject.latents(shape)
    if stage == "forward":
        inputs = subject.inputs(latents) | {"timestep": torch.tensor([500.0]), "return_dict": False}
        placed = {name: on_device(value, device) for name, value in inputs.items()}
        result = measure(lambda: module(**placed), device)
    else:
        z = on_device(latents, device)
        result = measure(lambda: module.decode(z, return_dict=False), device)  # type: ignore[operator]
    print(f"{subject.model} {stage} {shape}: {result['seconds']:.3f} s", file=sys.stderr)
    facts = {"model": subject.model, "stage": stage, "width": shape.width, "height": shape.height}
    facts |= {"frames": shape.frames, "dtype": str(DTYPE).removeprefix("torch."), "mode": "eager"}
    return facts | result | {"weight_bytes": weight_bytes(module)}


def describe_machine(device: str) -> dict[str, str]:
    import diffusers

    gpu = "cpu" if device == "cpu" else torch.cuda.get_device_name()
    return {
        "gpu": gpu,
        "torch": torch.__version__,
        "diffusers": diffusers.__version__,
        "cuda": str(torch.version.cuda),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="toy models on a CPU: checks the script only")
    is_tiny = parser.parse_args().tiny
    device = "cpu" if is_tiny else "cuda"
    torch.manual_seed(0)
    started = time.perf_counter()
    with torch.no_grad():
        runs = [
            run
            for subject in SUBJECTS
            for stage in ("forward", "decode")
            for run in measure_stage(subject, stage, device)
        ]
    report = {
        "schema": 1,
        "source": "benchmarks/gpu_planner_measurements.py, random weights"
        + (", toy models" if is_tiny else ""),
        "as_of": datetime.now(UTC).date().isoformat(),
        "machine": describe_machine(device),
        "wall_seconds": round(time.perf_counter() - started, 1),
        "runs": runs,
    }
    text = json.dumps(report)
    if out := os.environ.get("OUT"):
        (Path(out) / "planner_h200.json").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
