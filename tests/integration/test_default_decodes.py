"""Every pipeline of the zoo: a rendered clip has the frames that the pipeline itself returns by default."""

import inspect

import av
import numpy as np
import pytest
import torch

from filmgate.jobs import Size
from filmgate.pipeline.clip_writer import ClipOutputs
from filmgate.pipeline.control import Control
from filmgate.pipeline.denoise.denoise import _arguments
from filmgate.pipeline.render import Renderer
from filmgate.pipeline.text import TextCache, encode_text
from filmgate.pipeline.transfer.colour import Yuv420
from filmgate.settings import PipelineSettings
from tests.clip_requests import make_clip_request
from tests.zoo import BUILDERS

LOSSLESS = PipelineSettings(device="cpu", encoder="software", crf=0)
FRAMES = {"svd": 25, "ltx": 17, "ltx-0.9.5": 17}  # SVD: more than its first model renders
IMAGE_ONLY = ("wan-image", "cogvideox-image", "hunyuanvideo-image", "svd")


@torch.inference_mode()
def by_diffusers(loaded, request):
    """[frames, 3, height, width] in [0, 1]."""
    pipe = loaded.pipe
    text = encode_text(loaded, request, TextCache(0)).arguments
    count = request.frames + loaded.family.extra_frames(pipe)
    given = {**text, **_arguments(request, count), "output_type": "pt", "return_dict": False}
    accepted = inspect.signature(type(pipe).__call__).parameters
    done = pipe(**{key: each for key, each in given.items() if key in accepted and each is not None})
    return done[0] if torch.is_tensor(done) else done[0][0]  # SVD returns no tuple


@pytest.mark.parametrize("name", BUILDERS)
def test_a_clip_has_the_frames_that_its_pipeline_decodes_by_default(model, name, picture, tmp_path):
    loaded = model(name)
    sizes = loaded.limits.size
    side = max(sizes.multiple, 32)
    size = sizes.default if sizes.is_fixed else Size(side, side)
    image, frames = picture if name in IMAGE_ONLY else None, FRAMES.get(name, 9)
    request = make_clip_request(loaded, str(size), image, frames=frames, steps=1, seed=1, guidance=1.0)
    expected = by_diffusers(loaded, request) * 2 - 1
    planes = torch.empty(frames, *Yuv420().frame_shape(size.height, size.width), dtype=torch.uint8)
    Yuv420().convert(expected.transpose(0, 1), planes)
    path = tmp_path / "clip.mp4"
    Renderer(loaded, LOSSLESS).render(request, path, ClipOutputs(), Control())
    with av.open(str(path)) as video:
        found = np.stack([frame.to_ndarray() for frame in video.decode(video=0)])
    assert found.shape == tuple(planes.shape)
    assert np.abs(found.astype(int) - planes.numpy()).max() <= 1  # float32 rounds differently in chunks
