"""Percentiles of samples."""

from collections.abc import Sequence


def percentile(values: Sequence[float], share: float) -> float:
    """The sample at position `share` of the sorted samples."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
