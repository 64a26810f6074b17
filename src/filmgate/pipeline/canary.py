"""A small clip that proves a device before it is trusted with anybody's: made twice, decoded, compared."""

from contextlib import closing
from io import BytesIO

import av
import numpy as np
from PIL import Image

from filmgate.errors import DecodeError
from filmgate.jobs import Size
from filmgate.pipeline.clip_writer import ClipOutputs
from filmgate.pipeline.control import Control
from filmgate.pipeline.denoise.denoise import ClipRequest
from filmgate.pipeline.loading.loader import VideoModel
from filmgate.pipeline.render import Renderer
from filmgate.pipeline.text.encode import Prompt

PROMPT, STEPS, SIDE = Prompt("a canary sings"), 2, 128
# Kernels may round differently from run to run; a device that is not sound is off by far more than this.
MOST_DIFFERENCE = 8.0


def check_canary(model: VideoModel, renderer: Renderer) -> None:
    """Render the canary twice; raises DecodeError unless both are the same whole, playable clip."""
    request = canary_request(model)
    one, other = (_render_luma(renderer, request) for _ in range(2))
    expected = (request.frames, request.height, request.width)
    if one.shape != expected or other.shape != expected:
        raise DecodeError(f"the canary clip is {one.shape} and {other.shape} instead of {expected}")
    difference = float(np.abs(one - other).mean())
    if difference > MOST_DIFFERENCE:
        raise DecodeError(f"the canary differs by {difference:.1f} levels from itself: a device not to trust")


def _render_luma(renderer: Renderer, request: ClipRequest) -> np.ndarray:
    spool = renderer.render(PROMPT, request, None, ClipOutputs(), Control()).clip.spool
    assert spool is not None
    with closing(spool):
        return read_luma(b"".join(spool.chunks()))


def canary_request(model: VideoModel) -> ClipRequest:
    """The smallest clip that still passes through every part of the model."""
    limits = model.limits
    side = limits.size.nearest(Size(SIDE, SIDE)).width
    image = Image.new("RGB", (side, side), "grey") if limits.needs_image else None
    return ClipRequest(
        side, side, limits.frames.step + limits.frames.offset, 8, STEPS, seed=0, guidance=1.0, image=image
    )


def read_luma(clip: bytes) -> np.ndarray:
    """Every frame's brightness as float32 [frames, height, width]."""
    with av.open(BytesIO(clip), "r") as container:
        frames = [frame.to_ndarray(format="gray") for frame in container.decode(video=0)]
    return np.stack(frames).astype(np.float32)
