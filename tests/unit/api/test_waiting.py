"""How long a client wants to wait for the end of a video."""

import pytest

from filmgate.api.waiting import MAX_WAIT_SECONDS, parse_wait


@pytest.mark.parametrize(
    ("prefer", "seconds"),
    [
        (None, 0),
        ("", 0),
        ("wait=5", 5),
        ('Wait = "5"', 5),
        ("respond-async, wait=10; x=1", 10),
        ("wait=99999", MAX_WAIT_SECONDS),
        ("wait=" + "9" * 190, MAX_WAIT_SECONDS),
        ("wait=0", 0),
        ("wait=-1", 0),
        ("wait=1.5", 0),
        ("x-wait=5", 0),
    ],
)
def test_the_seconds_of_the_header_prefer(prefer, seconds):
    assert parse_wait(prefer) == seconds
