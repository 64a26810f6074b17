"""Numbers for people: three digits, no exponents, and never a price of zero for something that costs."""

import pytest

from filmgate.planner.report.numbers import count, seconds, usd


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 s"),
        (0.0123, "12.3 ms"),
        (0.9996, "1 s"),
        (1.234, "1.23 s"),
        (99.97, "100 s"),
        (1234.5, "1,234 s"),
    ],
)
def test_times_have_three_digits_and_no_exponent(value, text):
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0, "$0"),
        (0.0000123, "$0.000012"),
        (0.00085, "$0.00085"),
        (0.25, "$0.25"),
        (2.5, "$2.50"),
        (2171.4, "$2,171"),
    ],
)
def test_prices_are_never_rounded_to_zero(value, text):
    assert usd(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(2.5, "2.5"), (1500, "1,500"), (1e6, "1 M"), (35_577_312, "35.6 M"), (2e10, "20,000 M")],
)
def test_large_counts_are_in_millions(value, text):
    assert count(value) == text
