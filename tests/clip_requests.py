"""Clip requests for tests, built from a VideoRequest by the same functions as in production."""

from filmgate.jobs import Size
from filmgate.models.requests import Upload, VideoRequest, to_spec
from filmgate.pipeline.requests import to_clip_request


def make_clip_request(model, size=None, image=None, prompt="a red ball", **fields):
    """The request for a loaded model; `image` is a path."""
    upload = Upload("image", image.read_bytes()) if image is not None else None
    request = VideoRequest(prompt, size=Size.parse(size) if size else None, image=upload, **fields)
    spec = to_spec(request, model.name, model.limits, max_prompt_chars=4000)
    return to_clip_request(spec, upload.data if upload else None)
