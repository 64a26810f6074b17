"""Model limits: the error for a rejected value names the nearest accepted one."""

import math
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filmgate.errors import InvalidField, UnsupportedOperation, UnsupportedValue
from filmgate.jobs import Size, SourceKind
from filmgate.models.limits import FrameLimits, ModelLimits, Range, SizeLimits
from filmgate.models.requests import Upload, VideoRequest, to_spec

LIMITS = ModelLimits(
    size=SizeLimits(Size(832, 480), 16, 64, 1280, 1280 * 720),
    frames=FrameLimits(81, 4, 1, 5, 161),
    fps=Range(16, 1, 60),
    steps=Range(50, 1, 1000),
    guidance=Range(5.0, 0.0, 100.0),
    sources=frozenset({SourceKind.IMAGE, SourceKind.REMIX}),
)
SIDES = st.integers(0, 99_999)
IMAGE = Upload("input_reference", b"")


def spec_of(prompt="a heron", **fields):
    return to_spec(VideoRequest(prompt, **fields), "wan", LIMITS, max_prompt_chars=100)


def rejection(error=UnsupportedValue, **fields):
    with pytest.raises(error) as caught:
        spec_of(**fields)
    assert "\n" not in str(caught.value)
    return caught.value


def test_a_request_without_values_gets_the_models_defaults():
    spec = spec_of(seed=3)
    assert (spec.model, spec.size, spec.frames, spec.fps) == ("wan", Size(832, 480), 81, 16)
    assert (spec.steps, spec.seed, spec.guidance) == (50, 3, 5.0)


def test_requests_without_a_seed_get_different_seeds():
    assert len({spec_of().seed for _ in range(8)}) > 1


@given(SIDES, SIDES)
def test_the_error_for_a_size_names_an_accepted_size(width, height):
    size = Size(width, height)
    if LIMITS.size.allows(size):
        assert LIMITS.size.nearest(size) == spec_of(size=size).size == size
        return
    error = rejection(size=size)
    named = Size.parse(re.search(r"the nearest size is (\d+x\d+)", str(error))[1])
    assert error.option == "size"
    assert spec_of(size=named).size == named


def test_a_model_with_a_fixed_size_has_no_other():
    limits = replace(LIMITS.size, is_fixed=True)
    assert limits.check("wan", None) == limits.nearest(Size(640, 640)) == Size(832, 480)
    with pytest.raises(UnsupportedValue, match="wan renders 832x480 only"):
        limits.check("wan", Size(640, 640))


@given(st.integers(4, 45), st.integers(4, 45))
def test_the_nearest_size_within_the_limits_is_half_a_multiple_away(columns, rows):
    size = Size(columns * 16 + 5, rows * 16 - 5)
    near = LIMITS.size.nearest(size)
    assert all(abs(got - side) <= 8 for got, side in zip(near, size, strict=True))


@pytest.mark.parametrize(
    "text",
    ["", "720", "x", "1280x", "x720", "12.5x10", "-64x64", "64x64x3", "axb", "64 x 64", "9" * 6 + "x1"],
)
def test_the_error_for_text_that_is_not_a_size_has_an_example(text):
    with pytest.raises(InvalidField, match="WIDTHxHEIGHT, such as 1280x720") as caught:
        Size.parse(text)
    assert caught.value.option == "size"


def test_a_size_is_printed_as_width_x_height():
    assert f"{Size.parse('1280x720')}" == str(Size.parse("1280X720")) == "1280x720"


@given(st.integers(-10, 400))
def test_the_error_for_a_frame_count_names_an_accepted_one(frames):
    if frames in range(5, 162, 4):
        assert spec_of(frames=frames).frames == frames
        return
    error = rejection(frames=frames)
    nearest = int(re.search(r"the nearest to -?\d+ is (\d+)$", str(error))[1])
    assert error.option == "frames"
    assert spec_of(frames=nearest).frames == nearest
    assert abs(nearest - frames) <= 2 or not 5 <= frames <= 161


@given(st.floats(-1e9, 1e9), st.integers(1, 8), st.integers(0, 3), st.integers(0, 40))
def test_the_decoder_can_yield_the_nearest_frame_count(frames, step, low, span):
    limits = FrameLimits(1, step, 1, 1 + low * step, 1 + (low + span) * step)
    nearest = limits.nearest(frames)
    assert limits.min <= nearest <= limits.max
    assert (nearest - 1) % step == 0


@given(st.floats(0.25, 10))
def test_the_decoder_can_yield_the_frame_count_of_any_length_in_range(seconds):
    frames = spec_of(seconds=seconds).frames
    assert frames % 4 == 1
    assert abs(LIMITS.frames.seconds(frames, 16) - seconds) <= 0.125


@pytest.mark.parametrize("seconds", [0, -1, 601, 1e9, math.nan, math.inf, -math.inf])
def test_the_error_for_a_length_names_the_nearest(seconds):
    error = rejection(seconds=seconds)
    assert error.option == "seconds"
    nearest = float(re.search(r"the nearest length is ([\d.]+) seconds", str(error))[1])
    assert spec_of(seconds=nearest).frames == (161 if seconds > 10 else 5)


def test_frames_and_seconds_together_are_rejected():
    assert str(rejection(frames=5, seconds=1)) == "set seconds or frames, not both"


@pytest.mark.parametrize("name", ["fps", "steps"])
@pytest.mark.parametrize("value", [0, -1, 1001])
def test_a_count_outside_its_range_is_rejected(name, value):
    error = rejection(**{name: value})
    assert error.option == name
    assert f"{name} must be between 1 and" in str(error)


@pytest.mark.parametrize("seed", [-1, 2**63, 2**64])
def test_a_seed_outside_its_range_is_rejected(seed):
    assert "between 0 and 2**63 - 1" in str(rejection(seed=seed))


@pytest.mark.parametrize("guidance", [math.nan, math.inf, -1.0, 1000.0])
def test_guidance_outside_its_range_is_rejected(guidance):
    assert "guidance must be between 0 and 100" in str(rejection(guidance=guidance))


def test_text_is_limited_in_length_and_has_no_control_characters():
    assert "the limit is 100" in str(rejection(prompt="x" * 101))
    assert "U+0007" in str(rejection(InvalidField, prompt="a\abell"))
    assert "negative_prompt contains" in str(rejection(InvalidField, negative_prompt="\ud800"))
    assert rejection(InvalidField, prompt=" \n").option == "prompt"
    assert spec_of(prompt="two\nlines").prompt == "two\nlines"


def test_an_unsupported_source_is_rejected():
    assert spec_of(image=IMAGE).model == "wan"
    error = rejection(UnsupportedOperation, verb=SourceKind.EXTEND)
    assert (str(error), error.option) == ("wan cannot extend a clip", "video")


def test_a_model_that_needs_an_image_rejects_a_request_without_one():
    image_model = replace(LIMITS, needs_image=True)
    with pytest.raises(UnsupportedOperation, match="send an image"):
        to_spec(VideoRequest("a heron"), "wan", image_model, 100)
    assert to_spec(VideoRequest("", image=IMAGE), "wan", image_model, 100).prompt == ""
