"""From what somebody typed to a request: every refusal names the option and the nearest value that works."""

import math
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from filmgate.errors import UsageError
from filmgate.pipeline.loading.families import FAMILIES
from filmgate.pipeline.loading.loader import Defaults, Limits, VideoModel
from filmgate.pipeline.loading.memory import Offload, Placement
from filmgate.pipeline.requests import Wish, nearest_frames, parse_size, to_request

LIMITS = Limits(
    size_step=16, frame_step=4, max_size=1920, max_frames=161, needs_image=False, takes_image=True
)
MODEL = VideoModel(
    name="test",
    family=FAMILIES[0],
    pipe=None,
    placement=Placement("cpu", "float32", Offload.NONE),
    defaults=Defaults(width=832, height=480, frames=81, fps=16, steps=50, guidance=5.0),
    limits=LIMITS,
)


def refused(option, **wish) -> str:
    with pytest.raises(UsageError) as caught:
        to_request(MODEL, Wish(**wish))
    assert caught.value.option == option
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_wish_for_nothing_is_the_models_default():
    request = to_request(MODEL, Wish(seed=3))
    assert (request.width, request.height, request.frames, request.fps) == (832, 480, 81, 16)
    assert (request.steps, request.seed, request.guidance, request.image) == (50, 3, 5.0, None)


def test_without_a_seed_every_request_gets_its_own():
    assert len({to_request(MODEL, Wish()).seed for _ in range(8)}) > 1


@pytest.mark.parametrize(
    "text", ["", "720", "x", "1280x", "x720", "12.5x10", "-64x64", "64x64x3", "axb", "64 x 64"]
)
def test_text_that_is_no_size_is_refused_with_an_example(text):
    with pytest.raises(UsageError, match="write it as WIDTHxHEIGHT, such as 1280x720") as caught:
        parse_size(text)
    assert caught.value.option == "--size"


def outcome(**wish):
    """The request, or the refusal."""
    try:
        return to_request(MODEL, Wish(**wish))
    except UsageError as exc:
        return exc


@given(width=st.integers(0, 10**6), height=st.integers(0, 10**6))
def test_a_refused_size_names_a_nearest_one_that_is_accepted(width, height):
    answer = outcome(size=f"{width}x{height}")
    if not isinstance(answer, UsageError):
        assert (answer.width, answer.height) == (width, height)
        assert width % 16 == height % 16 == 0
        return
    assert answer.option == "--size"
    named = re.search(r"the nearest is (\d+)x(\d+)$", str(answer))
    near = tuple(int(side) for side in named.groups())
    accepted = outcome(size="{}x{}".format(*near))
    assert (accepted.width, accepted.height) == near
    pairs = zip(near, (width, height), strict=True)
    assert all(abs(got - side) <= 8 for got, side in pairs if 16 <= side <= 1920)


@given(frames=st.floats(-1000, 10**6, allow_nan=False), step=st.integers(1, 16))
def test_nearest_frames_are_a_length_the_model_makes_and_no_other_is_nearer(frames, step):
    nearest = nearest_frames(frames, step)
    assert nearest >= 1
    assert (nearest - 1) % step == 0
    if frames >= 1:
        assert abs(nearest - frames) <= step / 2


@given(frames=st.integers(-10, 400))
def test_a_refused_length_names_a_nearest_one_that_is_accepted(frames):
    answer = outcome(frames=frames)
    if not isinstance(answer, UsageError):
        assert answer.frames == frames
        assert 1 <= frames <= 161
        return
    assert answer.option == "--frames"
    nearest = int(re.search(r"is (\d+)$", str(answer)).group(1))
    assert outcome(frames=nearest).frames == nearest
    assert abs(nearest - frames) <= 2 or not 1 <= frames <= 161


@given(seconds=st.floats(0.01, 10), fps=st.integers(1, 16))
def test_seconds_become_the_nearest_length(seconds, fps):
    request = to_request(MODEL, Wish(seconds=seconds, fps=fps))
    assert request.frames == nearest_frames(seconds * fps, 4)


@pytest.mark.parametrize("seconds", [0, -1, 601, math.nan, math.inf, -math.inf])
def test_a_length_of_nothing_or_for_ever_is_refused(seconds):
    assert "is not between 0 and 600 seconds" in refused("--seconds", seconds=seconds)


def test_a_length_beyond_the_model_names_the_longest():
    assert refused("--seconds", seconds=30) == "this model makes at most 10.1 s at 16 fps"


def test_frames_and_seconds_together_are_refused():
    assert "not both" in refused("--frames", frames=5, seconds=1)


@pytest.mark.parametrize(("field", "option"), [("fps", "--fps"), ("steps", "--steps")])
@pytest.mark.parametrize("value", [0, -1, 1001])
def test_counts_outside_their_range_are_refused(field, option, value):
    assert refused(option, **{field: value}) == f"{value} is not between 1 and 1000"


@pytest.mark.parametrize("seed", [-1, 2**63, 2**64])
def test_a_seed_no_generator_takes_is_refused(seed):
    assert "between 0 and" in refused("--seed", seed=seed)


@pytest.mark.parametrize("guidance", [math.nan, math.inf, -1.0, 1000.0])
def test_guidance_that_is_no_strength_is_refused(guidance):
    assert "between 0 and 100" in refused("--guidance", guidance=guidance)


def test_a_picture_is_turned_upright_and_fitted_to_the_clip(tmp_path):
    picture = Image.new("RGBA", (40, 80), (255, 0, 0, 255))
    exif = picture.getexif()
    exif[0x0112] = 6  # taken with the camera on its side
    picture.convert("RGB").save(tmp_path / "photo.jpg", exif=exif)
    request = to_request(MODEL, Wish(size="64x32", image=tmp_path / "photo.jpg"))
    assert (request.image.size, request.image.mode) == ((64, 32), "RGB")


@pytest.mark.parametrize("content", [None, b"", b"no picture", b"\x89PNG\r\n\x1a\n"])
def test_a_file_that_is_no_picture_is_refused_by_name(content, tmp_path):
    if content is not None:
        (tmp_path / "picture.png").write_bytes(content)
    assert "picture.png is not a readable picture" in refused("--image", image=tmp_path / "picture.png")


def test_a_folder_is_no_picture(tmp_path):
    assert "is not a readable picture" in refused("--image", image=tmp_path)


def test_a_cut_picture_is_refused(picture):
    picture.write_bytes(picture.read_bytes()[:-2000])
    assert "is not a readable picture" in refused("--image", image=picture)


def test_a_picture_too_large_to_decode_is_refused_unread(tmp_path):
    Image.new("1", (10_000, 7_000)).save(tmp_path / "huge.png")
    assert "more than 64,000,000 pixels" in refused("--image", image=tmp_path / "huge.png")


def test_a_model_without_a_picture_path_says_so(picture):
    text_only = replace(MODEL, limits=replace(LIMITS, takes_image=False))
    with pytest.raises(UsageError, match="leave --image out or choose an image model"):
        to_request(text_only, Wish(image=picture))
