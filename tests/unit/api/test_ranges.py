"""Byte ranges as defined by RFC 9110."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filmgate.api.ranges import ByteRange, Unsatisfiable, has_current, parse_range


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("bytes=0-0", ByteRange(0, 1, 10)),
        ("bytes=2-5", ByteRange(2, 6, 10)),
        ("bytes=5-", ByteRange(5, 10, 10)),
        ("bytes=5-99", ByteRange(5, 10, 10)),
        ("bytes=-3", ByteRange(7, 10, 10)),
        ("bytes=-99", ByteRange(0, 10, 10)),
        ("Bytes=1-2", ByteRange(1, 3, 10)),
        (None, None),
        ("", None),
        ("bytes=", None),
        ("bytes=-", None),
        ("bytes=5-2", None),
        ("bytes=a-b", None),
        ("bytes=0-1,3-4", None),
        ("items=0-1", None),
    ],
)
def test_a_range_is_parsed_and_an_invalid_one_means_the_whole_file(header, expected):
    assert parse_range(header, 10) == expected


@pytest.mark.parametrize(("header", "size"), [("bytes=10-", 10), ("bytes=-0", 10), ("bytes=0-", 0)])
def test_a_range_that_contains_no_byte_is_unsatisfiable(header, size):
    with pytest.raises(Unsatisfiable):
        parse_range(header, size)


@given(st.integers(0, 200), st.integers(0, 200), st.integers(1, 100))
def test_a_range_is_always_within_the_object(first, last, size):
    try:
        span = parse_range(f"bytes={first}-{last}", size)
    except Unsatisfiable:
        assert first >= size
        return
    if span is not None:
        assert 0 <= span.start < span.stop <= size


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ('"a"', True),
        ('W/"a"', True),
        ('"b", "a"', True),
        ('W/"b",W/"a"', True),
        ("*", True),
        ('"b"', False),
        ("", False),
        (None, False),
    ],
)
def test_a_client_has_the_bytes_if_it_lists_their_etag(header, expected):
    assert has_current(header, '"a"') is expected
