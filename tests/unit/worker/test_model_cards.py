"""A loaded model's card says what the pipeline would take, no more and no less."""

from types import SimpleNamespace

import pytest

from filmgate.admission.validation import VideoRequest, complete_spec
from filmgate.cli.worker import parse_models
from filmgate.errors import UnsupportedValue
from filmgate.jobs import SourceKind
from filmgate.worker.cards import card_of

DEFAULTS = SimpleNamespace(width=832, height=480, frames=81, fps=16, steps=50, guidance=5.0)


def loaded(**limits):
    fields = {"size_step": 16, "frame_step": 4, "max_size": 1280, "max_frames": 161, "takes_image": False}
    return SimpleNamespace(defaults=DEFAULTS, limits=SimpleNamespace(**fields | limits))


def test_a_request_without_wishes_is_the_models_own_default():
    spec = complete_spec(VideoRequest(prompt="a heron"), card_of("wan", loaded()), 1000)
    assert (spec.model, spec.size, spec.frames, spec.fps) == ("wan", "832x480", 81, 16)
    assert (spec.steps, spec.guidance) == (50, 5.0)


@pytest.mark.parametrize(
    ("wish", "says"),
    [({"size": "840x480"}, "480"), ({"size": "1296x720"}, "1280"), ({"seconds": 60.0}, "10")],
)
def test_a_wish_beyond_the_models_limits_names_the_nearest(wish, says):
    with pytest.raises(UnsupportedValue, match=says):
        complete_spec(VideoRequest(prompt="a heron", **wish), card_of("wan", loaded()), 1000)


def test_the_largest_side_is_one_the_model_can_make():
    assert card_of("wan", loaded(max_size=1290)).size.max_side == 1280


def test_a_model_that_takes_an_image_says_so():
    assert card_of("wan", loaded()).sources == {SourceKind.REMIX}
    assert card_of("wan", loaded(takes_image=True)).sources == {SourceKind.REMIX, SourceKind.IMAGE}


@pytest.mark.parametrize(
    ("given", "models"),
    [
        (["flipbook"], {"flipbook": "flipbook"}),
        (["/models/wan"], {"wan": "/models/wan"}),
        (["/models/wan/"], {"wan": "/models/wan/"}),
        (["Wan-AI/Wan2.1-T2V"], {"Wan2.1-T2V": "Wan-AI/Wan2.1-T2V"}),
        (["wan=/models/2.1", "tiny=miniature"], {"wan": "/models/2.1", "tiny": "miniature"}),
    ],
)
def test_a_model_without_a_name_is_called_by_its_last_word(given, models):
    assert parse_models(given) == models
