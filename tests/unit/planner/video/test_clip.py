"""Clips are checked by the limits that the API and the pipeline use."""

import math

import pytest

from filmgate.errors import UnsupportedValue
from filmgate.jobs import Size
from filmgate.planner.video.clip import clip_for, frame_limits, size_limits


@pytest.fixture
def wan(catalog):
    return catalog.video_model("wan2.1-t2v-14b")


def test_a_clip_has_the_defaults_of_the_model(wan):
    clip = clip_for(wan)
    assert (clip.size, clip.frames, clip.fps, clip.steps, clip.forwards_per_step) == (
        Size(1280, 720),
        81,
        16,
        50,
        2,
    )
    assert clip.seconds == pytest.approx(81 / 16)


def test_seconds_become_the_closest_frame_count_of_the_decoder(wan, catalog):
    assert clip_for(wan, seconds=5).frames == 81
    assert clip_for(wan, seconds=5.1).frames == 81
    assert clip_for(wan, seconds=3.3, fps=23.976).frames == 81
    assert clip_for(catalog.video_model("svd-xt"), seconds=3).frames == 22


def test_a_length_shorter_than_one_step_is_one_step(wan):
    assert clip_for(wan, seconds=0.01).frames == 5
    assert clip_for(wan, frames=1).frames == 1


@pytest.mark.parametrize(
    ("given", "option", "message"),
    [
        ({"size": Size(1281, 720)}, "size", "the nearest size is 1280x720"),
        ({"size": Size(1280, 8)}, "size", "the nearest size is"),
        ({"size": Size(99_999, 99_999)}, "size", "the nearest size is"),
        ({"frames": 80}, "frames", "the nearest to 80 is 81"),
        ({"frames": -4}, "frames", "the nearest to -4 is 1"),
        ({"frames": 1_000_001}, "frames", "the nearest to 1000001 is 9317"),
        ({"seconds": -1}, "seconds", "the nearest length is 0 seconds"),
        ({"seconds": 5000}, "seconds", "the nearest length is"),
        ({"seconds": math.inf}, "seconds", "the nearest length is"),
        ({"seconds": math.nan}, "seconds", "the nearest length is"),
        ({"steps": 0}, "steps", "between 1 and 1000"),
        ({"steps": -1}, "steps", "between 1 and 1000"),
        ({"fps": 0.0}, "fps", "between 1 and 240"),
        ({"fps": math.nan}, "fps", "between 1 and 240"),
    ],
)
def test_a_clip_that_the_model_cannot_render_is_rejected_with_the_closest_value(wan, given, option, message):
    with pytest.raises(UnsupportedValue, match=message) as caught:
        clip_for(wan, **given)
    assert caught.value.option == option


def test_a_model_with_a_fixed_size_rejects_every_other_size(catalog):
    model = catalog.video_model("cogvideox-2b")
    assert clip_for(model, size=Size(720, 480)).size == Size(720, 480)
    with pytest.raises(UnsupportedValue, match="cogvideox-2b renders 720x480 only"):
        clip_for(model, size=Size(1280, 720))


def test_every_default_clip_is_within_the_limits(catalog):
    for model in catalog.video_models.values():
        clip = clip_for(model)
        assert size_limits(model).allows(clip.size), model.id
        assert frame_limits(model, clip.size).nearest(clip.frames) == clip.frames, model.id
