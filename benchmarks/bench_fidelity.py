"""The error of the fast decoder and of the exact one against a float32 decode of the same latents.

The baseline is the exact decoder: the VAE's own layers.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from statistics import fmean
from typing import Annotated

import torch
import typer
from torch import Tensor

from benchmarks.report import JsonFlag, print_report, run
from filmgate.pipeline.bench.decode import open_bench
from filmgate.pipeline.clip_writer import prepare
from filmgate.pipeline.decode import DecoderChoice
from filmgate.pipeline.decode.base import Vae, decode_frames
from filmgate.settings import load_settings


@dataclass(frozen=True, slots=True)
class Fidelity:
    """Errors in relative norm: of the whole clip, of the worst frame, and of every frame."""

    relative_error: float
    worst_frame_error: float
    frame_errors: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two decoders against float32.

    `seam` shows how much the error of the fast decoder, relative to the exact one, depends on the position of
    a frame in its chunk: the largest mean divided by the smallest, minus one. Without seams it is noise.
    """

    exact: Fidelity
    fast: Fidelity
    error_ratio: float
    worst_frame_ratio: float
    seam: float


def main(
    vae: Annotated[str, typer.Option(help="A full-size VAE with random weights.")] = "wan2.1",
    size: Annotated[str, typer.Option(help="WIDTHxHEIGHT.")] = "832x480",
    frames: Annotated[int, typer.Option(help="Length of the clip.")] = 33,
    is_json: JsonFlag = False,
) -> None:
    """Decode random latents with the fast decoder, the exact one and in float32."""
    running, settings = open_bench(vae, size, frames, 1, load_settings().pipeline)
    found = compare(running.vae, running.draw)
    ratios = {
        "fast_to_exact_error": found.error_ratio,
        "fast_to_exact_worst_frame": found.worst_frame_ratio,
        "seam": found.seam,
    }
    results = {"exact": asdict(found.exact), "fast": asdict(found.fast)}
    print_report("fidelity", settings, results, ratios, is_json=is_json)


def compare(vae: Vae, draw: Callable[[], Tensor], choice: DecoderChoice = "fast") -> Comparison:
    """Decode random latents three times: exactly, with `choice`, and in float32."""
    latents = draw()
    chunks = {name: decode_chunks(vae, latents, name) for name in ("exact", choice)}
    with _full_precision():
        reference = torch.cat(decode_chunks(copy.deepcopy(vae).float(), latents.float(), "exact"), dim=1)
    exact, fast = (measure(torch.cat(chunks[name], dim=1), reference) for name in ("exact", choice))
    return Comparison(
        exact,
        fast,
        error_ratio=fast.relative_error / exact.relative_error,
        worst_frame_ratio=fast.worst_frame_error / exact.worst_frame_error,
        seam=seam(
            [f / e for f, e in zip(fast.frame_errors, exact.frame_errors, strict=True)],
            [chunk.shape[1] for chunk in chunks[choice]],
        ),
    )


def decode_chunks(vae: Vae, latents: Tensor, choice: DecoderChoice) -> list[Tensor]:
    """Every chunk [3, n, height, width] in float32, on the host."""
    decoder, ready = prepare(vae, latents, choice=choice)
    return [frames.float().cpu() for frames in decode_frames(decoder, ready)]


def measure(frames: Tensor, reference: Tensor) -> Fidelity:
    """The error of frames [3, n, height, width] against the float32 reference."""
    error = frames - reference
    per_frame = (error.square().sum((0, 2, 3)) / reference.square().sum((0, 2, 3))).sqrt()
    whole = float(error.norm() / reference.norm())
    return Fidelity(whole, float(per_frame.max()), tuple(per_frame.tolist()))


def seam(ratios: Sequence[float], lengths: Sequence[int]) -> float:
    """The largest mean error ratio by position in the chunk divided by the smallest, minus one.

    `lengths` are the lengths of the chunks. The first chunk differs from the others and is not counted.
    """
    starts = list(accumulate(lengths))
    by_position: dict[int, list[float]] = {}
    for start, stop in pairwise(starts):
        for position, ratio in enumerate(ratios[start:stop]):
            by_position.setdefault(position, []).append(ratio)
    means = [fmean(values) for values in by_position.values()]
    return max(means) / min(means) - 1 if means else 0.0


@contextmanager
def _full_precision() -> Iterator[None]:
    """Disables TF32 in matrix products and convolutions."""
    cuda, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = cuda.allow_tf32, cudnn.allow_tf32
    cuda.allow_tf32 = cudnn.allow_tf32 = False
    try:
        yield
    finally:
        cuda.allow_tf32, cudnn.allow_tf32 = before


if __name__ == "__main__":
    run(main)
