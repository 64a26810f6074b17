"""Form keys with brackets are parsed to the same structure as JSON."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filmgate.api.forms import unbracket
from filmgate.errors import InvalidField

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
