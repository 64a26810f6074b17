"""The first frame of a clip: decoded, turned upright and fitted; anything else is refused."""

import io

import pytest
from PIL import Image

from filmgate.errors import UsageError
from filmgate.pipeline.requests import to_clip_request
from tests.tickets import make_spec

SPEC = make_spec(width=64, height=32, steps=2, seed=1, guidance=1.0)


def encode(image, kind="PNG", **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def test_an_image_is_turned_upright_and_fitted_to_the_clip():
    photo = Image.new("RGB", (40, 80), (255, 0, 0))
    exif = photo.getexif()
    exif[0x0112] = 6  # taken with the camera on its side
    request = to_clip_request(SPEC, encode(photo, "JPEG", exif=exif))
    assert (request.image.size, request.image.mode) == ((64, 32), "RGB")


@pytest.mark.parametrize(
    "data",
    [b"", b"no picture", b"\x89PNG\r\n\x1a\n", encode(Image.effect_noise((64, 64), 50))[:-2000]],
    ids=["empty", "text", "header", "cut"],
)
def test_bytes_that_are_not_an_image_are_refused(data):
    with pytest.raises(UsageError, match="the image cannot be decoded"):
        to_clip_request(SPEC, data)


def test_an_image_too_large_to_decode_is_refused_unread():
    with pytest.raises(UsageError, match="more than 64,000,000 pixels"):
        to_clip_request(SPEC, encode(Image.new("1", (10_000, 7_000))))
