"""Percentiles of samples."""

from collections.abc import Sequence


def percentile(values: Sequence[float], share: float) -> float:
    """The sample at position `share` of the sorted samples."""
    return percentile_of_sorted(sorted(values), share)


def percentile_of_sorted(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
