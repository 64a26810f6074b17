"""Form keys with brackets are parsed to the same structure as JSON, and no field is dropped."""

import asyncio
import json
from types import SimpleNamespace

import pytest
from fastapi import Request
from hypothesis import given
from hypothesis import strategies as st

from filmgate.api.forms import Body, reading, unbracket
from filmgate.api.videos import to_request
from filmgate.errors import InvalidField, UploadTooLarge
from filmgate.models.requests import MAX_SEED
from filmgate.tenants.base import Tenant

NAMES = st.text("abcdefgh_", min_size=1, max_size=5)
TREES = st.recursive(
    st.text(max_size=5),
    lambda inner: st.dictionaries(NAMES, inner, min_size=1, max_size=3),
    max_leaves=6,
)


def flatten(tree, prefix=""):
    for name, value in tree.items():
        key = f"{prefix}[{name}]" if prefix else name
        if isinstance(value, dict):
            yield from flatten(value, key)
        else:
            yield key, value


def depth(tree):
    return 1 + max(map(depth, tree.values())) if isinstance(tree, dict) else 0


@given(st.dictionaries(NAMES, TREES, max_size=4).filter(lambda tree: not tree or depth(tree) <= 4))
def test_the_flattened_keys_of_the_sdk_are_nested_again(tree):
    assert unbracket(list(flatten(tree))) == tree


def test_repeated_empty_brackets_are_a_list():
    assert unbracket([("a[]", "1"), ("a[]", "2"), ("b[c][]", "3")]) == {"a": ["1", "2"], "b": {"c": ["3"]}}


@pytest.mark.parametrize(
    "items",
    [
        [("a", "1"), ("a", "2")],
        [("a", "1"), ("a[b]", "2")],
        [("a[b]", "1"), ("a", "2")],
        [("a[]", "1"), ("a[b]", "2")],
        [("[a]", "1")],
        [("", "1")],
        [("a[b", "1")],
        [("a[b][c][d][e]", "1")],
    ],
)
def test_contradictory_or_malformed_keys_are_rejected(items):
    with pytest.raises(InvalidField):
        unbracket(items)


@pytest.mark.parametrize("name", ["image", "input_image", "prompt"])
def test_a_file_in_another_field_is_rejected(name):
    with pytest.raises(InvalidField, match="cannot be a file") as caught:
        to_request(Body({"prompt": "x"}, {name: object()}, digest=""))
    assert caught.value.option == name


def test_an_image_is_sent_as_a_file_or_named_but_not_both():
    fields = {"prompt": "x", "input_reference": {"image_url": "https://example.org/a.png"}}
    assert to_request(Body(fields, {}, digest="")).image_url is not None
    with pytest.raises(InvalidField, match="twice") as caught:
        to_request(Body(fields, {"input_reference": object()}, digest=""))
    assert caught.value.option == "input_reference"


@pytest.mark.parametrize("name", ["steps", "fps", "seed"])
@pytest.mark.parametrize("value", [10**400, -(10**400), str(10**400)], ids=["large", "negative", "text"])
def test_a_number_that_is_no_float_is_rejected(name, value):
    with pytest.raises(InvalidField) as caught:
        to_request(Body({"prompt": "x", name: value}, {}, digest=""))
    assert caught.value.option == name


def test_the_largest_seed_is_accepted():
    assert to_request(Body({"prompt": "x", "seed": MAX_SEED}, {}, digest="")).seed == MAX_SEED


@pytest.mark.parametrize(
    ("name", "other"), [("steps", "num_inference_steps"), ("guidance", "guidance_scale")]
)
def test_a_field_that_is_sent_under_both_of_its_names_occurs_twice(name, other):
    with pytest.raises(InvalidField, match="the field occurs twice; send it once") as caught:
        to_request(Body({"prompt": "x", name: 4, other: 4}, {}, digest=""))
    assert caught.value.option == other
    assert getattr(to_request(Body({"prompt": "x", other: 4}, {}, digest="")), name) == 4


EDGE = SimpleNamespace(limits=SimpleNamespace(max_form_bytes=4096))
SERVICES = SimpleNamespace(edge=EDGE, settings=SimpleNamespace(max_body_bytes=4096), spool_folder=None)
URLENCODED = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data; boundary=b"


def read(data, kind="application/json"):
    """The fields of a body, parsed as in a request."""
    state = SimpleNamespace(services=SERVICES)
    headers = [(b"content-type", kind.encode())]
    scope = {"type": "http", "path": "/", "headers": headers, "app": SimpleNamespace(state=state)}

    async def receive():
        return {"type": "http.request", "body": data, "more_body": False}

    async def fields():
        async with reading(Request(scope, receive), Tenant("acme")) as body:
            return body.fields

    return asyncio.run(fields())


@pytest.mark.parametrize(
    "data",
    [
        rb'{"a": "\ud800"}',
        rb'{"a": "\uDFFFx"}',
        rb'{"\ud800": 1}',
        rb'{"a": [{"b": [1, "\udc00\ud800"]}]}',
        rb'{"a": {"b": {"\ud83d": null}}}',
        b'{"a": "\xed\xa0\x80"}',
        pytest.param('{"a": "\ud800"}'.encode("utf-16-le", "surrogatepass"), id="utf-16"),
    ],
)
def test_json_with_half_of_a_surrogate_pair_is_refused(data):
    with pytest.raises(InvalidField, match="not valid Unicode") as caught:
        read(data)
    assert caught.value.option == "body"


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=4))
def test_json_with_any_other_text_is_read(fields):
    assert read(json.dumps(fields).encode()) == fields
    assert read(json.dumps(fields, ensure_ascii=False).encode()) == fields


def multipart(name, value):
    return b'--b\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n--b--\r\n' % (name, value)


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (URLENCODED, "prompt=ein Käfer; 赤い球&seed=".encode()),
        (URLENCODED, b"prompt=ein+K%C3%A4fer%3B+%E8%B5%A4%E3%81%84%E7%90%83&seed"),
        (MULTIPART, multipart(b"prompt", "ein Käfer; 赤い球".encode())),
    ],
    ids=["as curl -d sends it", "escaped", "multipart"],
)
def test_forms_are_read_as_utf_8(kind, data):
    assert read(data, kind) | {"seed": ""} == {"prompt": "ein Käfer; 赤い球", "seed": ""}


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (URLENCODED, b"prompt=caf\xe9"),
        (URLENCODED, b"prompt=caf%E9"),
        (URLENCODED, b"prompt=%ED%A0%80"),
        (URLENCODED, b"caf%E9=1"),
        (MULTIPART, multipart(b"prompt", b"caf\xe9")),
        (MULTIPART, multipart(b"prompt", b"\xed\xa0\x80")),
    ],
)
def test_a_form_in_another_charset_is_refused(kind, data):
    with pytest.raises(InvalidField, match="not UTF-8") as caught:
        read(data, kind)
    assert caught.value.option == "body"


def test_the_name_of_a_field_is_valid_unicode_whatever_its_bytes():
    assert json.dumps(read(multipart(b"\xed\xa0\x80", b"1"), MULTIPART), ensure_ascii=False).encode()


def test_a_form_has_at_most_100_fields():
    data = "&".join(f"field{number}=1" for number in range(101)).encode()
    assert len(read(data.rpartition(b"&")[0], URLENCODED)) == 100
    with pytest.raises(InvalidField, match="more than 100 fields"):
        read(data, URLENCODED)


def test_a_name_that_json_has_twice_is_refused():
    with pytest.raises(InvalidField, match="the field occurs twice") as caught:
        read(b'{"a": {"prompt": "x", "prompt": "y"}}')
    assert caught.value.option == "prompt"


@pytest.mark.parametrize(
    ("kind", "data", "remedy"),
    [
        ("application/json", b" " * 4097, "the body is larger than 4096 bytes; send files as multipart"),
        (
            MULTIPART,
            multipart(b"image", b"x" * 4096),
            "the body is larger than 4096 bytes; send a smaller file",
        ),
    ],
)
def test_a_body_that_is_too_large_says_what_to_send_instead(kind, data, remedy):
    with pytest.raises(UploadTooLarge, match=remedy):
        read(data, kind)
