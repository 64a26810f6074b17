"""The first frame of a clip: decoded, rotated upright and fitted to its size; other bytes are refused."""

import io

import pytest
from PIL import Image, features

from filmgate.errors import UsageError
from filmgate.pipeline.requests import to_clip_request
from tests.tickets import make_spec

SPEC = make_spec(width=64, height=32, steps=2, seed=1, guidance=1.0)


def encode(image, kind="PNG", **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


NOISE = Image.effect_noise((64, 64), 50)
TRUNCATED = {"PNG": -2000, "JPEG": -20, "WEBP": -20} | ({"AVIF": -20} if features.check("avif") else {})


def test_an_image_is_rotated_upright_and_fitted_to_the_clip():
    photo = Image.new("RGB", (40, 80), (255, 0, 0))
    exif = photo.getexif()
    exif[0x0112] = 6  # Orientation: rotate by 90 degrees
    request = to_clip_request(SPEC, encode(photo, "JPEG", exif=exif))
    assert (request.image.size, request.image.mode) == ((64, 32), "RGB")


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"not an image", id="text"),
        pytest.param(b"\x89PNG\r\n\x1a\n", id="header"),
        *(pytest.param(encode(NOISE, kind)[:cut], id=kind) for kind, cut in TRUNCATED.items()),
    ],
)
def test_bytes_that_are_not_an_image_are_refused(data):
    with pytest.raises(UsageError, match="the image cannot be decoded"):
        to_clip_request(SPEC, data)


def test_an_image_with_too_many_pixels_is_refused_before_it_is_decoded():
    with pytest.raises(UsageError, match="more than 64,000,000 pixels"):
        to_clip_request(SPEC, encode(Image.new("1", (10_000, 7_000))))
