"""Form keys with brackets are parsed to the same structure as JSON, and no field is dropped."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filmgate.api.forms import Body, unbracket
from filmgate.api.videos import to_request
from filmgate.errors import InvalidField
from filmgate.models.requests import MAX_SEED

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
