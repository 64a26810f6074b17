"""`filmgate bench fidelity`: how far a decoder is from a float32 decode of the same latents."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import fmean

import torch
from torch import Tensor

from filmgate.pipeline.clip_writer import prepare
from filmgate.pipeline.decode import DecoderChoice
from filmgate.pipeline.decode.base import Vae
from filmgate.pipeline.decode.ladder import decode_frames


@dataclass(frozen=True, slots=True)
class Fidelity:
    """Errors in relative norm: of the whole clip, of its worst frame, and frame by frame."""

    relative_error: float
    worst_frame_error: float
    frame_errors: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two decoders against float32, and what one frame's error says about the next chunk's.

    `seam` is how much the fast decoder's error, as a share of the exact one's, depends on a frame's place in
    its chunk: the largest mean over the smallest, less one. Without seams it is noise.
    """

    exact: Fidelity
    fast: Fidelity
    error_ratio: float
    worst_frame_ratio: float
    seam: float


def compare(vae: Vae, draw: Callable[[], Tensor], choice: DecoderChoice = "fast") -> Comparison:
    """Decode fresh latents three ways: the VAE's own layers, `choice`, and float32."""
    latents = draw()
    chunks = {name: decode_chunks(vae, latents, name) for name in ("exact", choice)}
    with _full_precision():
        truth = torch.cat(decode_chunks(copy.deepcopy(vae).float(), latents.float(), "exact"), dim=1)
    exact, fast = (measure(torch.cat(chunks[name], dim=1), truth) for name in ("exact", choice))
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


def measure(frames: Tensor, truth: Tensor) -> Fidelity:
    """The error of frames [3, n, height, width] against the truth."""
    error = frames - truth
    per_frame = (error.square().sum((0, 2, 3)) / truth.square().sum((0, 2, 3))).sqrt()
    whole = float(error.norm() / truth.norm())
    return Fidelity(whole, float(per_frame.max()), tuple(per_frame.tolist()))


def seam(ratios: Sequence[float], lengths: Sequence[int]) -> float:
    """How much a frame's place in its chunk matters: the largest mean over the smallest, less one.

    `lengths` are the chunks'. The first one, which is unlike the others, does not count.
    """
    starts = list(accumulate(lengths))
    places: dict[int, list[float]] = {}
    for start, stop in pairwise(starts):
        for place, ratio in enumerate(ratios[start:stop]):
            places.setdefault(place, []).append(ratio)
    means = [fmean(place) for place in places.values()]
    return max(means) / min(means) - 1 if means else 0.0


@contextmanager
def _full_precision() -> Iterator[None]:
    """float32 that is float32: no TF32 in products or convolutions."""
    cuda, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = cuda.allow_tf32, cudnn.allow_tf32
    cuda.allow_tf32 = cudnn.allow_tf32 = False
    try:
        yield
    finally:
        cuda.allow_tf32, cudnn.allow_tf32 = before
