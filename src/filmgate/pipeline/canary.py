"""The canary: a small clip that a device must render correctly, twice, before it takes jobs."""

from contextlib import closing
from io import BytesIO

import av
import numpy as np
from PIL import Image

from filmgate.errors import DecodeError
from filmgate.jobs import Size
from filmgate.pipeline.clip_writer import ClipOutputs
from filmgate.pipeline.control import Control
from filmgate.pipeline.loading.loader import VideoModel
from filmgate.pipeline.render import Renderer
from filmgate.pipeline.requests import ClipRequest
from filmgate.pipeline.text.encode import Prompt

PROMPT, STEPS, SIDE, FPS = Prompt("a canary sings"), 2, 128, 8
MAX_DIFFERENCE = 8.0
"""Mean difference in luma levels between the two clips. Kernels may round differently from run to run; a
faulty device differs by far more."""


def check_canary(model: VideoModel, renderer: Renderer) -> None:
    """Render the canary twice. Raises DecodeError unless both clips are complete and agree."""
    request = canary_request(model)
    first, second = (_render_luma(renderer, request) for _ in range(2))
    expected = (request.frames, request.height, request.width)
    if first.shape != expected or second.shape != expected:
        raise DecodeError(f"the canary clips have shapes {first.shape} and {second.shape}, not {expected}")
    difference = float(np.abs(first - second).mean())
    if difference > MAX_DIFFERENCE:
        raise DecodeError(
            f"the GPU gives inconsistent results: two canaries differ by {difference:.1f} levels"
        )


def _render_luma(renderer: Renderer, request: ClipRequest) -> np.ndarray:
    spool = renderer.render(PROMPT, request, None, ClipOutputs(), Control()).clip.spool
    assert spool is not None
    with closing(spool):
        return read_luma(b"".join(spool.chunks()))


def canary_request(model: VideoModel) -> ClipRequest:
    """The smallest clip that still runs every part of the model."""
    limits = model.limits
    side = limits.size.nearest(Size(SIDE, SIDE)).width
    image = Image.new("RGB", (side, side), "grey") if limits.needs_image else None
    frames = limits.frames.step + limits.frames.offset
    return ClipRequest(side, side, frames, FPS, STEPS, seed=0, guidance=1.0, image=image)


def read_luma(clip: bytes) -> np.ndarray:
    """The luma of every frame, as float32 [frames, height, width]."""
    with av.open(BytesIO(clip), "r") as container:
        frames = [frame.to_ndarray(format="gray") for frame in container.decode(video=0)]
    return np.stack(frames).astype(np.float32)
