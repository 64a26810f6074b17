"""Percentiles of the history, and the windows it is read in."""

import random
from collections import Counter

import pytest

from filmgate.planner.percentiles import percentile
from filmgate.scheduling.history import COARSE_SECONDS, FINE_SECONDS, Latencies, Window, bucket_of

NOW = 1_800_000_000.0
DAY = 86400


@pytest.mark.parametrize("scale", [0.2, 5.0, 90.0, 4000.0])
def test_a_percentile_of_the_histogram_is_at_most_19_percent_off(scale):
    """ADR 91 states the error of a bucket."""
    chance = random.Random(7)
    seconds = [scale * chance.lognormvariate(0, 1) for _ in range(5000)]
    counts = Counter(bucket_of(value) for value in seconds)
    latencies = Latencies(tuple(sorted(counts.items())), sum(seconds))
    for share in (0.5, 0.95, 0.99):
        assert latencies.quantile(share) == pytest.approx(percentile(seconds, share), rel=0.19)
    assert latencies.mean == pytest.approx(sum(seconds) / len(seconds))


def test_no_jobs_have_no_percentile():
    assert Latencies().quantile(0.5) is Latencies().mean is None


@pytest.mark.parametrize(("seconds", "bucket"), [(0.0, 0), (0.05, 0), (0.051, 1), (0.1, 4), (0.2, 8)])
def test_a_bound_belongs_to_the_bucket_below_it(seconds, bucket):
    assert bucket_of(seconds) == bucket


@pytest.mark.parametrize(
    ("age", "period", "width"),
    [
        (3600, 300, FINE_SECONDS),
        (DAY, 0, FINE_SECONDS),
        (DAY, 3600, COARSE_SECONDS),
        (7 * DAY, 0, COARSE_SECONDS),
    ],
)
def test_a_window_is_rounded_out_and_read_from_the_finest_rows_that_are_kept(age, period, width):
    window = Window.around(NOW - age + 1, NOW + 1, period, NOW)
    assert window.width_seconds == width
    assert window.start <= NOW - age + 1 < NOW + 1 <= window.end
    assert len(window.starts) == ((window.end - window.start) // period if period else 1)
    assert window.start % (period or width) == window.end % (period or width) == 0
