"""Number formats for people."""

from filmgate.catalog.gpus import GIB


def gib(value: float) -> str:
    return f"{value / GIB:.1f} GiB"


def seconds(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f} s"
    return f"{value:.3g} s" if value >= 1 else f"{value * 1e3:.3g} ms"


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
    return f"${value:.2f}" if value >= 1 else f"${value:.4f}".rstrip("0").rstrip(".")


def count(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:g} M"
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def counted(value: int, noun: str) -> str:
    """A number with its noun, in the plural unless it is one."""
    return f"{value} {noun}" if value == 1 else f"{value} {noun}s"
