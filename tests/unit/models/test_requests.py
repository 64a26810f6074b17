"""A request field is declared in four places: the API schema, the request, the spec and the clip request.

A field that is missing in one of them, or is not carried from one to the next, fails a test here. No other
module lists the fields.
"""

from dataclasses import fields
from types import UnionType
from typing import get_args, get_origin, get_type_hints

import pytest

from filmgate.api.forms import Body
from filmgate.api.openapi import form_body
from filmgate.api.schemas import CreateVideo
from filmgate.api.videos import to_request
from filmgate.errors import SettingsError, UnsupportedValue
from filmgate.jobs import Size, Source, SourceKind, VideoSpec, new_job_id
from filmgate.models.limits import FrameLimits, ModelLimits, Range, SizeLimits
from filmgate.models.requests import VideoRequest, inherit, parse_sizes, to_spec
from filmgate.pipeline.requests import ClipRequest, to_clip_request
from filmgate.scheduling import rows

LIMITS = ModelLimits(
    size=SizeLimits(Size(832, 480), 16, 64, 1280, 1280 * 720),
    frames=FrameLimits(81, 4, 1, 5, 161),
    fps=Range(16, 1, 60),
    steps=Range(50, 1, 1000),
    guidance=Range(5.0, 0.0, 100.0),
    sources=frozenset(SourceKind),
    quality=("full", "draft"),
)
EXAMPLES = {int: 24, float: 2.5, str: "an example", Size: Size(128, 64)}
LISTED = {"quality": "draft"}  # fields whose values are listed

# Fields that are not carried by name: the source of the clip, its length and the texts.
SOURCE_FIELDS = {"image", "image_url", "image_from", "verb", "source_id"}
LENGTH_FIELDS = {"seconds", "frames"}
TEXT_FIELDS = {"prompt", "negative_prompt"}


def names(kind):
    return {f.name for f in fields(kind)}


def example(kind, name):
    """A value of the field's type that differs from every default."""
    if name in LISTED:
        return LISTED[name]
    hint = get_type_hints(kind)[name]
    types = get_args(hint) if get_origin(hint) is UnionType else (hint,)
    return next(EXAMPLES[each] for each in types if each in EXAMPLES)


CARRIED = names(VideoRequest) - SOURCE_FIELDS - LENGTH_FIELDS - {"size", "model"}
REQUEST = VideoRequest(
    **{name: example(VideoRequest, name) for name in CARRIED}, size=EXAMPLES[Size], seconds=2.0
)
SPEC = to_spec(REQUEST, "wan", LIMITS, max_prompt_chars=100)


def test_the_schema_and_the_request_have_the_same_fields():
    assert set(CreateVideo.model_fields) - {"input_reference"} == names(VideoRequest) - SOURCE_FIELDS - {
        "frames"  # for `filmgate generate`; clients of the API give seconds
    }
    given = {name: example(VideoRequest, name) for name in CARRIED}
    request = to_request(Body(given | {"size": "128x64", "seconds": 2.0}, files={}, digest=""))
    assert request == REQUEST


def test_the_openapi_document_contains_every_field_of_the_schema():
    for body in form_body(CreateVideo)["requestBody"]["content"].values():
        assert body["schema"]["properties"].keys() == CreateVideo.model_fields.keys()


def test_every_field_of_the_request_is_carried_to_the_spec():
    assert {name: getattr(SPEC, name) for name in CARRIED} == {
        name: getattr(REQUEST, name) for name in CARRIED
    }
    assert (SPEC.model, SPEC.size, SPEC.frames) == ("wan", REQUEST.size, 2 * REQUEST.fps + 1)
    assert names(VideoSpec) - CARRIED == {
        "model",
        "width",
        "height",
        "seconds",
        "source",
        "scaled_to",
        "extra",
    }


def test_every_field_of_the_spec_is_stored():
    stored = rows.to_spec(rows.from_spec(SPEC))
    kept = names(VideoSpec) - TEXT_FIELDS  # texts are encrypted in a column of their own
    assert {name: getattr(stored, name) for name in kept} == {name: getattr(SPEC, name) for name in kept}


def test_every_field_of_the_spec_is_carried_to_the_clip_request():
    clip = to_clip_request(SPEC)
    carried = names(ClipRequest) - {"image", "owner"}
    assert {name: getattr(clip, name) for name in carried} == {name: getattr(SPEC, name) for name in carried}
    elsewhere = {"model", "seconds", "source", "extra"}
    assert names(VideoSpec) - elsewhere == carried - {"frames"}
    assert "prompt=" not in repr(clip)


def test_a_request_that_starts_from_a_clip_inherits_every_field_it_leaves_out():
    source_id = new_job_id()
    remix = VideoRequest("a blue ball", verb=SourceKind.REMIX, source_id=source_id)
    inherited = inherit(remix, SPEC, LIMITS)
    same = CARRIED - TEXT_FIELDS | {"size", "seconds"}
    assert {name: getattr(inherited, name) for name in same} == {
        name: getattr(REQUEST, name) for name in same
    }
    assert (inherited.prompt, inherited.negative_prompt) == ("a blue ball", None)
    assert (inherited.model, inherited.source_id) == ("wan", source_id)
    longer = inherit(VideoRequest("x", seconds=4.0, verb=SourceKind.EXTEND), SPEC, LIMITS)
    assert (longer.seconds, longer.size) == (4.0, SPEC.size)


def test_an_unknown_quality_level_is_refused_with_the_list():
    with pytest.raises(UnsupportedValue, match="wan has no quality level 'best'; use full, draft") as caught:
        to_spec(VideoRequest("x", quality="best"), "wan", LIMITS, 100)
    assert caught.value.option == "quality"


def test_a_request_without_a_level_gets_the_default_if_the_model_has_it():
    assert to_spec(VideoRequest("x"), "wan", LIMITS, 100).quality == "full"
    assert to_spec(VideoRequest("x"), "wan", LIMITS, 100, default_quality="draft").quality == "draft"
    assert to_spec(VideoRequest("x"), "wan", LIMITS, 100, default_quality="balanced").quality == "full"


def test_a_level_that_would_predict_nothing_is_full():
    assert to_spec(VideoRequest("x", steps=10, quality="draft"), "wan", LIMITS, 100).quality == "full"


def test_a_spec_keeps_its_source_when_it_is_stored():
    source = Source(SourceKind.EXTEND, new_job_id(), "clip-1.mp4", "video/mp4")
    spec = VideoSpec("wan", "", 128, 64, 2.0, 16, source=source)
    assert rows.to_spec(rows.from_spec(spec)).source == source


def test_a_listed_size_that_the_model_cannot_render_is_scaled():
    portrait = Size(1024, 1792)
    request = VideoRequest("x", size=portrait)
    spec = to_spec(request, "wan", LIMITS, 100, (portrait,))
    assert (spec.size, spec.scaled_to, spec.clip_size) == (Size(720, 1264), portrait, portrait)
    assert rows.to_spec(rows.from_spec(spec)).scaled_to == portrait
    assert to_clip_request(spec).scaled_to == portrait
    assert inherit(VideoRequest("y", verb=SourceKind.REMIX), spec, LIMITS).size == portrait
    with pytest.raises(UnsupportedValue, match="the nearest size is 720x1264"):
        to_spec(request, "wan", LIMITS, 100)
    native = to_spec(VideoRequest("x", size=Size(1280, 720)), "wan", LIMITS, 100, (Size(1280, 720),))
    assert native.scaled_to is None


@pytest.mark.parametrize("text", ["1280", "1281x720", "0x720"])
def test_a_scaled_size_that_cannot_be_encoded_is_a_settings_error(text):
    with pytest.raises(SettingsError) as caught:
        parse_sizes(text, "admission.scaled_sizes")
    assert caught.value.option == "admission.scaled_sizes"


def test_sizes_in_settings_are_parsed_in_their_order():
    assert parse_sizes("1280x720, 720x1280", "provider.sizes") == (Size(1280, 720), Size(720, 1280))
    assert parse_sizes("", "provider.sizes") == ()
