"""`filmgate bench fidelity`: how far a decoder is from a float32 decode of the same latents."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from filmgate.pipeline.decode import DecoderChoice
from filmgate.pipeline.decode.base import Vae
from filmgate.pipeline.decode.ladder import decode_frames
from filmgate.pipeline.ending import prepare


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
    frames = {name: decode_all(vae, latents, name) for name in ("exact", choice)}
    with _full_precision():
        truth = decode_all(copy.deepcopy(vae).float(), latents.float(), "exact")
    exact, fast = (measure(frames[name], truth) for name in ("exact", choice))
    return Comparison(
        exact,
        fast,
        error_ratio=fast.relative_error / exact.relative_error,
        worst_frame_ratio=fast.worst_frame_error / exact.worst_frame_error,
        seam=seam([f / e for f, e in zip(fast.frame_errors, exact.frame_errors, strict=True)]),
    )


def decode_all(vae: Vae, latents: Tensor, choice: DecoderChoice) -> Tensor:
    """Every frame [3, n, height, width] in float32, on the host."""
    decoder, ready = prepare(vae, latents, choice=choice)
    return torch.cat([frames.float().cpu() for frames in decode_frames(decoder, ready)], dim=1)


def measure(frames: Tensor, truth: Tensor) -> Fidelity:
    """The error of frames [3, n, height, width] against the truth."""
    error = frames - truth
    per_frame = (error.square().sum((0, 2, 3)) / truth.square().sum((0, 2, 3))).sqrt()
    whole = float(error.norm() / truth.norm())
    return Fidelity(whole, float(per_frame.max()), tuple(per_frame.tolist()))


def seam(ratios: list[float], chunk_frames: int = 4) -> float:
    """How much a frame's place in its chunk matters: the largest mean over the smallest, less one."""
    later = ratios[1:]
    means = [sum(part) / len(part) for n in range(chunk_frames) if (part := later[n::chunk_frames])]
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
