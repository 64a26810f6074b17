"""Measures video models of full size with random weights on one GPU: forward pass, decode and peak memory.

The last line of output is one JSON object, which `--out` also writes to a file, such as
src/filmgate/catalog/data/measured/planner_h200.json. Validate the planner with it:
filmgate plan validate --calibration src/filmgate/catalog/data/calibration.json
`--tiny` runs a toy model on a CPU, only to check the script.
"""

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from benchmarks.denoisers import build_denoiser, draw_inputs
from filmgate.pipeline.bench.provenance import provenance
from filmgate.pipeline.bench.vaes import build_vae, recipe_of

REPEATS = 3
DTYPE = torch.bfloat16


@dataclass(frozen=True)
class Subject:
    """A model of the catalog, the names of its networks, and the clips to run: width, height, frames."""

    model: str
    denoiser: str
    vae: str
    clips: tuple[tuple[int, int, int], ...]


SUBJECTS = (
    Subject("wan2.1-t2v-1.3b", "wan2.1-1.3b", "wan2.1", ((832, 480, 81), (1280, 720, 81))),
    Subject("ltx-video-2b-0.9.0", "ltx-2b", "ltx", ((768, 512, 121),)),
    Subject("cogvideox-2b", "cogvideox-2b", "cogvideox", ((720, 480, 49),)),
)
TINY = (Subject("toy", "wan-tiny", "wan-tiny", ((64, 32, 9),)),)


def time_once(call: Callable[[], object], device: torch.device) -> float:
    """Seconds of one call, by CUDA events or, on a CPU, by the wall clock."""
    if device.type == "cpu":
        started = time.perf_counter()
        call()
        return time.perf_counter() - started
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1000


def measure(call: Callable[[], object], device: torch.device) -> dict[str, Any]:
    """The median of three calls after a warm-up, and their peak memory including weights."""
    call()
    if device.type != "cpu":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    samples = [time_once(call, device) for _ in range(REPEATS)]
    peak = None if device.type == "cpu" else torch.cuda.max_memory_allocated()
    return {"seconds": statistics.median(samples), "samples": samples, "peak_bytes": peak}


def forward(subject: Subject, clip: tuple[int, int, int], network: Any) -> Callable[[], object]:
    """One pass through the denoiser with random inputs."""
    *size, frames = clip
    device = next(network.parameters()).device
    inputs = draw_inputs(subject.denoiser, (size[0], size[1]), frames, (device, DTYPE))
    named = {
        "hidden_states": inputs.latents,
        "encoder_hidden_states": inputs.text,
        "timestep": inputs.timestep,
        **inputs.others,
    }
    return lambda: network(**named, return_dict=False)


def decode(subject: Subject, clip: tuple[int, int, int], network: Any) -> Callable[[], object]:
    """The whole clip in one call, from random latents in the layout of the VAE."""
    recipe, (width, height, frames) = recipe_of(subject.vae), clip
    length = (frames - 1) // recipe.temporal + 1
    shape = (1, recipe.channels, length, height // recipe.spatial, width // recipe.spatial)
    latents = torch.randn(shape, device=network.device, dtype=DTYPE)
    return lambda: network.decode(latents, return_dict=False)


def measure_stage(subject: Subject, stage: str, device: torch.device) -> list[dict[str, Any]]:
    """Every clip of one stage of one model. The weights of the other stage are not on the device."""
    if stage == "forward":
        network, prepare = build_denoiser(subject.denoiser, device, DTYPE), forward
    else:
        network, prepare = build_vae(subject.vae, device, DTYPE), decode
    runs = []
    for clip in subject.clips:
        found = measure(prepare(subject, clip, network), device)
        print(f"{subject.model} {stage} {clip}: {found['seconds']:.3f} s", file=sys.stderr)
        facts = {"model": subject.model, "stage": stage, "width": clip[0], "height": clip[1]}
        facts |= {"frames": clip[2], "dtype": str(DTYPE).removeprefix("torch."), "mode": "eager"}
        weight_bytes = sum(weight.nbytes for weight in network.parameters())
        runs.append(facts | found | {"weight_bytes": weight_bytes})
    del network
    gc.collect()
    torch.cuda.empty_cache()
    return runs


def describe_machine(device: torch.device) -> dict[str, str]:
    import diffusers

    return {
        "gpu": "cpu" if device.type == "cpu" else torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "diffusers": diffusers.__version__,
        "cuda": str(torch.version.cuda),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="a toy model on a CPU: checks the script only")
    parser.add_argument("--out", type=Path, help="write the JSON to this file too")
    options = parser.parse_args()
    is_tiny = options.tiny
    device = torch.device("cpu" if is_tiny else "cuda")
    torch.manual_seed(0)
    started = time.perf_counter()
    with torch.no_grad():
        runs = [
            run
            for subject in (TINY if is_tiny else SUBJECTS)
            for stage in ("forward", "decode")
            for run in measure_stage(subject, stage, device)
        ]
    report = {
        "schema": 1,
        "source": "benchmarks/gpu_planner_measurements.py, random weights" + (", a toy" if is_tiny else ""),
        "as_of": datetime.now(UTC).date().isoformat(),
        "commit": provenance()["commit"],
        "machine": describe_machine(device),
        "wall_seconds": round(time.perf_counter() - started, 1),
        "runs": runs,
    }
    text = json.dumps(report)
    if options.out is not None:
        options.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
