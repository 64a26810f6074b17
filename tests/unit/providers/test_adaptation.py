"""How a spec is fitted to a provider's models, and which changes a tenant's policy forbids."""

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filmgate.errors import ProviderCannot
from filmgate.jobs import ManagedPolicy, Size, Source, SourceKind, VideoSpec
from filmgate.models.limits import Range, SizeLimits
from filmgate.providers.adaptation import SLACK_SECONDS, adapt, find_obstacles, fit
from filmgate.providers.base import ProviderModel
from filmgate.providers.bedrock_models import MODELS, list_models
from filmgate.settings import ProviderSettings

ANYTHING = ManagedPolicy(is_allowed=True, may_resize=True, may_change_length=True)
SPEC = VideoSpec(model="wan", prompt="a red ball", width=1280, height=720, seconds=5.0, fps=24, seed=7)
REEL = list_models(MODELS["amazon.nova-reel-v1:1"], ProviderSettings(region="us-east-1"))
RAY = list_models(MODELS["luma.ray-v2:0"], ProviderSettings(region="us-west-2"))
LIMITS = {
    "size_limits": SizeLimits(Size(256, 256), multiple=32, min_side=64, max_side=512, max_pixels=262144),
    "seconds_range": Range(2.0, 0.5, 12.0),
}


def make_model(**fields):
    given = {
        "provider": "http",
        "model": "wan",
        "region": "eu-1",
        "sizes": (),
        "seconds": (),
        "fps": None,
        "usd_per_second": 0.1,
        "expected_seconds": 60.0,
        "max_prompt_chars": 100,
        "takes_image": False,
        "takes_seed": True,
    }
    return ProviderModel(**given | fields)


@pytest.mark.parametrize(
    ("size", "seconds", "becomes", "length", "usd"),
    [
        ((1280, 720), 5.0, "1280x720", 5.0, 7.5),
        ((1280, 720), 5.0625, "1280x720", 5.0, 7.5),
        ((1280, 720), 7.0, "1280x720", 5.0, 7.5),
        ((1280, 720), 7.5, "1280x720", 9.0, 13.5),
        ((960, 540), 2.0, "960x540", 5.0, 3.75),
        ((832, 480), 9.0, "960x540", 9.0, 6.75),
        ((1920, 1080), 30.0, "1280x720", 9.0, 13.5),
        ((720, 1280), 5.0, "720x1280", 5.0, 7.5),
        ((512, 512), 5.0, "540x540", 5.0, 3.75),
        ((1024, 768), 5.0, "960x720", 5.0, 7.5),
        ((2560, 1080), 5.0, "1680x720", 5.0, 7.5),
    ],
)
def test_ray_renders_the_nearest_shape_and_length(size, seconds, becomes, length, usd):
    spec = replace(SPEC, width=size[0], height=size[1], seconds=seconds)
    rendition = adapt(spec, RAY, ANYTHING)
    assert (str(rendition.spec.size), rendition.spec.seconds, rendition.usd) == (becomes, length, usd)


@pytest.mark.parametrize(
    ("seconds", "length", "usd"),
    [
        (2.0, 6.0, 0.48),
        (8.0, 6.0, 0.48),
        (9.0, 6.0, 0.48),
        (10.0, 12.0, 0.96),
        (30.0, 30.0, 2.4),
        (500.0, 60.0, 4.8),
    ],
)
def test_reel_renders_six_seconds_or_a_multiple(seconds, length, usd):
    rendition = adapt(replace(SPEC, seconds=seconds), REEL, ANYTHING)
    assert (rendition.spec.seconds, rendition.usd) == (length, usd)


def test_every_difference_is_listed():
    spec = replace(SPEC, width=256, height=256, seconds=2.0, fps=16, negative_prompt="rain")
    assert adapt(spec, RAY, ANYTHING).changes == (
        "model wan -> luma.ray-v2:0",
        "size 256x256 -> 540x540",
        "length 2 s -> 5 s",
        "fps 16 -> 24",
        "seed dropped",
        "negative prompt dropped",
    )


def test_a_spec_that_fits_is_unchanged():
    rendition = adapt(SPEC, [make_model(takes_options=True)], ManagedPolicy(is_allowed=True))
    assert (rendition.spec, rendition.changes) == (SPEC, ())


@pytest.mark.parametrize(
    ("policy", "spec", "message"),
    [
        (ManagedPolicy(), SPEC, "the tenant allows no managed provider"),
        (replace(ANYTHING, regions=("eu-west-1",)), SPEC, "does not allow region us-west-2"),
        (replace(ANYTHING, max_usd_per_clip=3.0), SPEC, "7.5 USD exceeds the tenant's limit"),
        (
            replace(ANYTHING, may_resize=False),
            replace(SPEC, width=640, height=480),
            "does not allow 640x480 to become",
        ),
        (
            replace(ANYTHING, may_change_length=False),
            replace(SPEC, seconds=2.0),
            "does not allow 2 s to become 5 s",
        ),
        (ANYTHING, replace(SPEC, prompt="x" * 5001), "5001 characters"),
        (ANYTHING, replace(SPEC, source=Source(SourceKind.EXTEND)), "does not support this job's source"),
        (ANYTHING, replace(SPEC, source=Source(SourceKind.REMIX)), "does not support this job's source"),
        (ANYTHING, replace(SPEC, lora="style:0.8"), r"does not support adapters \(LoRA\)"),
        (
            ANYTHING,
            replace(SPEC, extra={"camera": "still"}),
            "this version of filmgate does not support camera",
        ),
    ],
)
def test_a_change_that_tenant_or_model_forbid_is_an_obstacle(policy, spec, message):
    with pytest.raises(ProviderCannot, match=message):
        adapt(spec, RAY, policy)


def test_a_clip_that_our_models_render_in_another_size_is_not_resized_by_the_provider():
    """Routing checks the rendition against the spec as it is stored."""
    scaled = replace(SPEC, width=1280, height=704, scaled_to=Size(1280, 720))
    policy = replace(ANYTHING, may_resize=False)
    rendition = adapt(scaled, RAY, policy)
    assert str(rendition.spec.size) == "1280x720"
    assert find_obstacles(scaled, rendition, policy) == []


def test_the_next_nearest_rendition_is_used_when_the_nearest_is_forbidden():
    cheap = adapt(SPEC, RAY, replace(ANYTHING, max_usd_per_clip=4.0))
    assert (str(cheap.spec.size), cheap.usd) == ("960x540", 3.75)


def test_a_long_prompt_uses_the_shot_that_supports_it():
    spec = replace(SPEC, prompt="x" * 600, seconds=6.0)
    assert adapt(spec, REEL, ANYTHING).spec.seconds == 12.0


def test_a_first_frame_uses_the_shot_that_supports_it():
    spec = replace(SPEC, source=Source(SourceKind.IMAGE), seconds=30.0)
    assert adapt(spec, REEL, ANYTHING).spec.seconds == 6.0


def test_a_remix_needs_the_same_seed_and_the_same_model():
    spec = replace(SPEC, source=Source(SourceKind.REMIX))
    assert adapt(spec, [make_model()], ANYTHING).spec.seed == 7
    with pytest.raises(ProviderCannot):
        adapt(spec, [make_model(model="other")], ANYTHING)


def test_the_remix_of_a_clip_from_an_image_needs_a_model_that_takes_images():
    spec = replace(SPEC, source=Source(SourceKind.REMIX, media_type="image/png"))
    assert adapt(spec, [make_model(takes_image=True)], ANYTHING).spec.seed == 7
    with pytest.raises(ProviderCannot):
        adapt(spec, [make_model(takes_image=False)], ANYTHING)


def test_a_provider_without_models_renders_nothing():
    with pytest.raises(ProviderCannot, match="the provider has no models"):
        adapt(SPEC, [], ANYTHING)


def test_no_field_of_a_spec_is_dropped_silently_at_a_provider():
    passed_on_or_listed = {"model", "prompt", "width", "height", "seconds", "fps", "seed", "quality"}
    passed_on_or_listed |= {"negative_prompt", "scaled_to"}
    depends_on_the_model = {"steps", "guidance"}
    obstacles = {"lora", "extra", "pixel_format", "source"}
    assert {
        field.name for field in fields(VideoSpec)
    } == passed_on_or_listed | depends_on_the_model | obstacles


sizes = st.tuples(st.integers(16, 4096), st.integers(16, 4096))
specs = st.builds(
    lambda size, seconds, fps: replace(SPEC, width=size[0], height=size[1], seconds=seconds, fps=fps),
    sizes,
    st.floats(0.1, 200),
    st.integers(1, 60),
)
policies = st.builds(
    ManagedPolicy,
    is_allowed=st.booleans(),
    regions=st.sampled_from([(), ("us-west-2",), ("eu-1", "us-west-2"), ("us-east-1",)]),
    max_usd_per_clip=st.none() | st.floats(0, 20),
    may_resize=st.booleans(),
    may_change_length=st.booleans(),
)


@given(specs, policies)
def test_no_rendition_breaks_the_policy(spec, policy):
    try:
        rendition = adapt(spec, RAY + REEL, policy)
    except ProviderCannot:
        return
    assert policy.is_allowed
    assert not policy.regions or rendition.model.region in policy.regions
    assert policy.max_usd_per_clip is None or rendition.usd <= policy.max_usd_per_clip
    assert policy.may_resize or rendition.spec.size == spec.size
    assert policy.may_change_length or abs(rendition.spec.seconds - spec.seconds) <= SLACK_SECONDS


@given(specs)
def test_a_rendition_has_a_size_and_length_that_the_model_lists(spec):
    rendition = adapt(spec, RAY + REEL, ANYTHING)
    assert rendition.spec.size in rendition.model.sizes
    assert rendition.spec.seconds in rendition.model.seconds


@given(specs)
def test_a_change_is_named_if_and_only_if_there_is_one(spec):
    rendition = fit(spec, RAY[0])
    named = {change.partition(" ")[0] for change in rendition.changes}
    assert ("size" in named) == (rendition.spec.size != spec.size)
    assert ("length" in named) == (abs(rendition.spec.seconds - spec.seconds) > SLACK_SECONDS)
    assert ("fps" in named) == (rendition.spec.fps != spec.fps)


@given(specs)
def test_limits_are_never_exceeded(spec):
    near = fit(spec, make_model(**LIMITS)).spec
    for side in (near.width, near.height):
        assert side % 32 == 0
        assert 64 <= side <= 512
    assert near.width * near.height <= 262144
    assert 0.5 <= near.seconds <= 12


@given(specs)
def test_fitting_twice_changes_nothing_more(spec):
    strict = replace(ANYTHING, may_resize=False, may_change_length=False)
    for model in (*RAY, *REEL, make_model(**LIMITS)):
        once = fit(spec, model).spec
        again = fit(once, model)
        assert again.spec == once
        assert find_obstacles(once, again, strict) == []


def test_a_provider_without_the_quality_level_renders_in_full():
    draft = replace(SPEC, quality="draft")
    plain = fit(draft, make_model())
    assert (plain.spec.quality, plain.changes) == ("full", ("quality draft -> full",))
    assert fit(draft, make_model(quality=("full", "draft"))).spec.quality == "draft"


def test_a_provider_does_not_get_jobs_in_a_format_that_it_does_not_write():
    playable = replace(SPEC, pixel_format="yuv420p")
    assert adapt(playable, RAY, ANYTHING).changes == adapt(SPEC, RAY, ANYTHING).changes
    with pytest.raises(ProviderCannot, match="does not write yuv422p10"):
        adapt(replace(SPEC, pixel_format="yuv422p10"), RAY, ANYTHING)
