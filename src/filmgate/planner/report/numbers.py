"""Number formats for people."""

from math import floor, log10

from filmgate.catalog.gpus import GIB


def gib(value: float) -> str:
    return f"{value / GIB:.1f} GiB"


def digits(value: float) -> str:
    """Three digits, or all of them in front of the decimal point; never an exponent of a large number."""
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.3g}"


def seconds(value: float) -> str:
    if value >= 0.9995 or not value:  # what three digits round to a second
        return f"{digits(value)} s"
    return f"{value * 1e3:.3g} ms"


def interval(value: float, low: float, high: float) -> str:
    """A time with its interval, and the unit once where it is the same."""
    middle, least, most = seconds(value), seconds(low), seconds(high)
    units = {text.rpartition(" ")[2] for text in (middle, least, most)}
    if len(units) == 1:
        least, most = (text.rpartition(" ")[0] for text in (least, most))
    return f"{middle} ({least} to {most})"


def usd(value: float | None) -> str:
    if value is None:
        return "-"
    if value >= 1000:
        return f"${value:,.0f}"
    if value >= 1:
        return f"${value:.2f}"
    places = max(4, 1 - floor(log10(value))) if value else 1  # at least two digits that are not zero
    return f"${value:.{places}f}".rstrip("0").rstrip(".")


def count(value: float) -> str:
    if value >= 1e6:
        return f"{digits(value / 1e6)} M"
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def counted(value: int, noun: str) -> str:
    """A number with its noun, in the plural unless it is one."""
    return f"{value} {noun}" if value == 1 else f"{value} {noun}s"
