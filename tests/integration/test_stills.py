"""Images made in child processes: stills of a clip, and a first frame in another size."""

import io

import pytest
from PIL import Image

from filmgate.errors import ProviderCannot
from filmgate.jobs import Size, StillKind
from filmgate.providers.images import fit_image, png_size
from filmgate.providers.managed import stills
from filmgate.providers.managed.stills import NoStills, make_stills
from tests.fake_bedrock import make_mp4
from tests.images import png


def size_of(data):
    with Image.open(io.BytesIO(data)) as image:
        return image.format, image.size


def test_a_clip_has_a_thumbnail_and_a_sheet_of_sixteen_frames():
    clip = make_mp4(frames=24)
    found = make_stills([clip[:1000], clip[1000:]])
    assert size_of(found[StillKind.THUMBNAIL]) == ("JPEG", (64, 48))
    assert size_of(found[StillKind.SPRITESHEET]) == ("JPEG", (4 * 64, 4 * 48))


def test_a_short_clip_has_a_smaller_sheet():
    found = make_stills([make_mp4(frames=3)])
    assert size_of(found[StillKind.SPRITESHEET]) == ("JPEG", (3 * 64, 48))


def test_the_thumbnail_is_the_middle_frame():
    found = make_stills([make_mp4(frames=12)])
    with Image.open(io.BytesIO(found[StillKind.THUMBNAIL])) as image:
        assert abs(image.convert("L").getpixel((30, 20)) - 6 * 20) < 8


@pytest.mark.parametrize(
    "clip", [b"", b"<html>", b"\0\0\0\x18ftypmp42" + b"\0" * 5000], ids=["empty", "page", "broken"]
)
def test_invalid_clips_have_no_stills_and_a_reason(clip):
    with pytest.raises(NoStills) as caught:
        make_stills([clip])
    assert caught.value.reason


def test_without_a_decoder_there_are_no_stills(monkeypatch):
    monkeypatch.setattr(stills, "find_spec", lambda _name: None)
    with pytest.raises(NoStills, match="\\.\\[worker\\]"):
        make_stills([make_mp4()])


def test_a_child_that_is_killed_while_it_writes_makes_no_stills(monkeypatch, tmp_path):
    child = tmp_path / "child.sh"
    child.write_text("#!/bin/sh\ncat > /dev/null\nprintf '{\"thumbnail\": 9}\\nhalf'\nkill -KILL $$\n")
    child.chmod(0o755)
    monkeypatch.setattr(stills.sys, "executable", str(child))
    with pytest.raises(NoStills, match="cannot be decoded"):
        make_stills([make_mp4()])


def test_an_error_of_the_store_is_raised():
    def chunks():
        yield make_mp4()[:100]
        raise OSError("the disk failed")

    with pytest.raises(OSError, match="the disk failed"):
        make_stills(chunks())


def test_the_size_of_a_png_is_read_from_its_header():
    assert png_size(png(1280, 720)) == (1280, 720)
    assert (png_size(b"GIF89a"), png_size(b"\x89PNG\r\n\x1a\n")) == (None, None)


def test_fitting_a_first_frame_is_deterministic():
    once, again = (fit_image(png(300, 400), Size(1280, 720)) for _ in range(2))
    assert once == again
    assert size_of(once) == ("PNG", (1280, 720))
    with Image.open(io.BytesIO(once)) as image:
        assert image.mode == "RGB"


def test_an_invalid_image_cannot_be_fitted():
    with pytest.raises(ProviderCannot):
        fit_image(b"not an image", Size(1280, 720))
