"""The canary: a small clip that a device must render as it did before.

The first rendering on a kind of device becomes the golden clip of the model. Later ones, on this GPU and on
others of its kind, are compared with it.
"""

import hashlib
import zlib
from contextlib import closing
from dataclasses import dataclass
from io import BytesIO

import av
import numpy as np
import torch
from PIL import Image

from filmgate.errors import DecodeError
from filmgate.jobs import Size
from filmgate.pipeline.clip_writer import ClipOutputs
from filmgate.pipeline.control import Control
from filmgate.pipeline.loading.loader import VideoModel
from filmgate.pipeline.render import Renderer
from filmgate.pipeline.requests import ClipRequest

PROMPT, STEPS, SIDE, FPS = "a canary sings", 2, 128, 8
MAX_DIFFERENCE = 8.0
"""Mean difference in luma levels between two clips of one device. Kernels may round differently from run to
run; a faulty device differs by far more."""
_MIN_TOLERANCE, _NOISE_FACTOR = 2.0, 4.0
_REMEDY = "delete it with `filmgate models reset-canary VERSION`"


@dataclass(frozen=True, slots=True)
class GoldenClip:
    """What the canary must look like: compressed luma, its SHA-256 and the largest mean difference."""

    frames: bytes
    sha256: str
    tolerance: float


def make_golden(model: VideoModel, renderer: Renderer) -> GoldenClip:
    """Render the canary twice. Raises DecodeError unless both clips are complete and agree."""
    first, second = (_render_luma(model, renderer) for _ in range(2))
    difference = _compare(first, second)
    if difference > MAX_DIFFERENCE:
        raise DecodeError(
            f"the GPU gives inconsistent results: two canaries differ by {difference:.1f} levels"
        )
    frames = first.astype(np.uint8).tobytes()
    tolerance = max(_MIN_TOLERANCE, _NOISE_FACTOR * difference)
    return GoldenClip(zlib.compress(frames), hashlib.sha256(frames).hexdigest(), tolerance)


def measure_drift(golden: GoldenClip, model: VideoModel, renderer: Renderer) -> float:
    """Render the canary and return its mean difference from the golden clip, in luma levels.

    Raises DecodeError if the clip is incomplete or contains NaN, or if the golden clip is damaged or was made
    by a version of Filmgate with another canary clip.
    """
    expected, luma = _read_frames(golden), _render_luma(model, renderer)
    if expected.size != luma.size:
        raise DecodeError(f"the golden clip has another size than the canary clip; {_REMEDY}")
    return _compare(expected.reshape(luma.shape), luma)


def describe_setup(model: VideoModel) -> str:
    """What a golden clip depends on besides the weights: the kind of device, data type and torch version."""
    placement = model.placement
    device = torch.cuda.get_device_name(placement.device) if placement.device.type == "cuda" else "cpu"
    weights = "" if placement.weights == "full" else f", weights in {placement.weights}"
    return f"{device}, {str(placement.dtype).removeprefix('torch.')}{weights}, torch {torch.__version__}"


def canary_request(model: VideoModel) -> ClipRequest:
    """The smallest clip that still runs every part of the model."""
    limits = model.limits
    size = limits.size.nearest(Size(SIDE, SIDE))
    image = Image.new("RGB", size, "grey") if limits.needs_image else None
    frames = limits.frames.step + limits.frames.offset
    return ClipRequest(PROMPT, *size, frames, FPS, STEPS, seed=0, guidance=1.0, image=image)


def read_luma(clip: bytes) -> np.ndarray:
    """The luma of every frame, as float32 [frames, height, width]."""
    with av.open(BytesIO(clip), "r") as container:
        frames = [frame.to_ndarray(format="gray") for frame in container.decode(video=0)]
    return np.stack(frames).astype(np.float32)


def _render_luma(model: VideoModel, renderer: Renderer) -> np.ndarray:
    request = canary_request(model)
    spool = renderer.render(request, None, ClipOutputs(), Control()).clip.spool
    assert spool is not None
    with closing(spool):
        luma = read_luma(b"".join(spool.chunks()))
    expected = (request.frames, request.height, request.width)
    if luma.shape != expected:
        raise DecodeError(f"the canary clip has the shape {luma.shape}, not {expected}")
    return luma


def _read_frames(golden: GoldenClip) -> np.ndarray:
    try:
        frames = zlib.decompress(golden.frames)
    except zlib.error as exc:
        raise DecodeError(f"the golden clip is damaged; {_REMEDY}") from exc
    if hashlib.sha256(frames).hexdigest() != golden.sha256:
        raise DecodeError(f"the golden clip does not match its digest; {_REMEDY}")
    return np.frombuffer(frames, np.uint8).astype(np.float32)


def _compare(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(one - other).mean())
