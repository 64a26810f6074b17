"""Bedrock inputs as in the AWS documentation, the models in the catalog, and their life cycles."""

from base64 import b64encode
from dataclasses import replace
from datetime import UTC, date, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filmgate.errors import ProviderUnusable
from filmgate.jobs import ManagedPolicy, VideoSpec
from filmgate.providers.adaptation import adapt
from filmgate.providers.bedrock_models import (
    MODELS,
    LifeCycle,
    entries_of,
    find_model,
    from_answer,
    from_catalog,
    list_models,
    ray_input,
    ray_size,
    reel_input,
)
from filmgate.settings import ProviderSettings

SPEC = VideoSpec(model="m", prompt="a red ball", width=1280, height=720, seconds=5.0, fps=24, seed=42)
IMAGE = b"\x89PNG pixels"
TODAY = date(2026, 11, 15)
ANYTHING = ManagedPolicy(is_allowed=True, may_resize=True, may_change_length=True)
RAY = list_models(MODELS["luma.ray-v2:0"], ProviderSettings(region="us-west-2"))
REEL = list_models(MODELS["amazon.nova-reel-v1:1"], ProviderSettings(region="us-east-1"))
specs = st.builds(
    lambda width, height, seconds, chars: replace(
        SPEC, width=width, height=height, seconds=seconds, prompt="x" * chars
    ),
    st.integers(16, 4096),
    st.integers(16, 4096),
    st.floats(0.1, 200),
    st.integers(1, 4000),
)


def test_ray_text_to_video_is_the_documented_payload():
    assert ray_input(SPEC, None) == {
        "prompt": "a red ball",
        "aspect_ratio": "16:9",
        "loop": False,
        "duration": "5s",
        "resolution": "720p",
    }


def test_ray_image_to_video_uses_the_image_as_the_first_frame():
    assert ray_input(SPEC, IMAGE)["keyframes"] == {
        "frame0": {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": b64encode(IMAGE).decode()},
        }
    }


@pytest.mark.parametrize(
    ("size", "aspect", "resolution"),
    [
        ((960, 540), "16:9", "540p"),
        ((720, 1280), "9:16", "720p"),
        ((540, 540), "1:1", "540p"),
        ((960, 720), "4:3", "720p"),
        ((540, 720), "3:4", "540p"),
        ((1680, 720), "21:9", "720p"),
        ((540, 1260), "9:21", "540p"),
    ],
)
def test_ray_sizes_are_named_by_aspect_and_shorter_side(size, aspect, resolution):
    payload = ray_input(replace(SPEC, width=size[0], height=size[1], seconds=9.0), None)
    assert (payload["aspect_ratio"], payload["resolution"], payload["duration"]) == (aspect, resolution, "9s")


def test_every_ray_size_has_even_sides_and_the_exact_aspect():
    for height in (540, 720):
        for aspect in ((1, 1), (16, 9), (9, 16), (4, 3), (3, 4), (21, 9), (9, 21)):
            size = ray_size(aspect, height)
            assert (min(size), size.width % 2, size.height % 2) == (height, 0, 0)
            assert size.width * aspect[1] == size.height * aspect[0]


def test_reel_text_to_video_is_the_documented_payload():
    assert reel_input(replace(SPEC, seconds=6.0), None) == {
        "taskType": "TEXT_VIDEO",
        "textToVideoParams": {"text": "a red ball"},
        "videoGenerationConfig": {"durationSeconds": 6, "fps": 24, "dimension": "1280x720", "seed": 42},
    }


def test_reel_image_to_video_adds_one_image():
    params = reel_input(replace(SPEC, seconds=6.0), IMAGE)["textToVideoParams"]
    assert params["images"] == [{"format": "png", "source": {"bytes": b64encode(IMAGE).decode()}}]


def test_reel_renders_several_shots_from_one_text():
    payload = reel_input(replace(SPEC, seconds=18.0), None)
    assert payload["taskType"] == "MULTI_SHOT_AUTOMATED"
    assert payload["multiShotAutomatedParams"] == {"text": "a red ball"}
    assert payload["videoGenerationConfig"]["durationSeconds"] == 18


@pytest.mark.parametrize(("seed", "sent"), [(2147483648, 1), (2147483646, 2147483646), (None, 0)])
def test_a_seed_beyond_the_range_of_reel_is_reduced_to_it(seed, sent):
    assert reel_input(replace(SPEC, seconds=6.0, seed=seed), None)["videoGenerationConfig"]["seed"] == sent


def test_models_have_price_quota_and_limits_of_the_catalog():
    high, low = list_models(
        MODELS["luma.ray-v2:0"], ProviderSettings(region="us-west-2", expected_seconds=99)
    )
    assert (high.usd_per_second, low.usd_per_second) == (1.5, 0.75)
    assert (high.max_prompt_chars, high.takes_image, high.fps, high.expected_seconds) == (5000, True, 24, 99)
    shot, shots = list_models(MODELS["amazon.nova-reel-v1:1"], ProviderSettings(region="us-east-1"))
    assert (shot.seconds, shot.max_prompt_chars, shot.takes_image) == ((6.0,), 512, True)
    assert (shots.seconds[0], shots.max_prompt_chars, shots.takes_image) == (12.0, 4000, False)
    assert (shot.max_concurrent, shot.expected_seconds, shot.image_size) == (3, 90.0, (1280, 720))
    assert len(list_models(MODELS["amazon.nova-reel-v1:0"], ProviderSettings(region="us-east-1"))) == 1


@given(specs)
def test_ray_is_sent_only_values_it_supports(spec):
    payload = ray_input(adapt(spec, RAY, ANYTHING).spec, None)
    assert payload["aspect_ratio"] in {"1:1", "16:9", "9:16", "4:3", "3:4", "21:9", "9:21"}
    assert payload["resolution"] in {"540p", "720p"}
    assert payload["duration"] in {"5s", "9s"}
    assert 1 <= len(payload["prompt"]) <= 5000


@given(specs, st.none() | st.integers(0, 2**63 - 1))
def test_reel_is_sent_only_values_it_supports(spec, seed):
    payload = reel_input(replace(adapt(spec, REEL, ANYTHING).spec, seed=seed), None)
    config = payload["videoGenerationConfig"]
    assert (config["dimension"], config["fps"]) == ("1280x720", 24)
    assert config["durationSeconds"] in range(6, 121, 6)
    assert 0 <= config["seed"] <= 2_147_483_646
    is_one_shot = payload["taskType"] == "TEXT_VIDEO"
    assert is_one_shot == (config["durationSeconds"] == 6)
    text = payload["textToVideoParams" if is_one_shot else "multiShotAutomatedParams"]["text"]
    assert 1 <= len(text) <= (512 if is_one_shot else 4000)


def test_an_unknown_model_is_rejected_with_the_known_ids():
    with pytest.raises(ProviderUnusable, match="luma.ray-v2:0, amazon.nova-reel-v1:1"):
        find_model("runway.gen-4")


def test_a_model_past_its_end_of_life_is_rejected_with_the_date():
    life = from_catalog(entries_of("amazon.nova-reel-v1:1")[0], "us-east-1")
    with pytest.raises(ProviderUnusable, match=r"end of life on 2026-09-30 \(catalog of 2026-09-01\)"):
        life.check("amazon.nova-reel-v1:1", TODAY)


def test_a_region_without_the_model_is_rejected_with_the_regions_that_have_it():
    with pytest.raises(ProviderUnusable, match="offered in us-west-2, not in eu-west-1"):
        from_catalog(entries_of("luma.ray-v2:0")[0], "eu-west-1")


def test_an_active_model_passes_until_its_end_of_life():
    life = from_catalog(entries_of("luma.ray-v2:0")[0], "us-west-2")
    assert life.end_of_life is None or life.end_of_life > TODAY
    assert life.check("luma.ray-v2:0", TODAY) is None
    with pytest.raises(ProviderUnusable, match=TODAY.isoformat()):
        replace(life, end_of_life=TODAY).check("luma.ray-v2:0", TODAY)


@pytest.mark.parametrize(
    ("status", "end", "is_usable"),
    [
        ("ACTIVE", None, True),
        ("LEGACY", datetime(2027, 1, 1, tzinfo=UTC), True),
        ("LEGACY", datetime(2026, 11, 15, tzinfo=UTC), False),
        ("ACTIVE", datetime(2026, 1, 1, tzinfo=UTC), False),
    ],
)
def test_the_life_cycle_from_bedrock_is_checked(status, end, is_usable):
    life = from_answer(status, end)
    if is_usable:
        life.check("m", TODAY)
    else:
        with pytest.raises(ProviderUnusable, match="GetFoundationModel"):
            life.check("m", TODAY)


def test_a_retired_model_without_a_date_is_rejected():
    with pytest.raises(ProviderUnusable, match="retired"):
        LifeCycle("retired", None, "catalog").check("m", TODAY)
