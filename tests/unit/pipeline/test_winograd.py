"""Winograd's transforms compute a convolution over time."""

import itertools
from fractions import Fraction

import pytest

from filmgate.pipeline.decode.fast.winograd import TRANSFORMS


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=lambda t: f"F({t.outputs},3)")
def test_each_output_is_the_sum_of_three_taps_over_three_frames(transform):
    frames, taps = transform.outputs + 2, 3
    for output, frame, tap in itertools.product(range(transform.outputs), range(frames), range(taps)):
        weight = sum(
            Fraction(transform.output_transform[output][point])
            * Fraction(transform.filter_transform[point][tap])
            * Fraction(transform.input_transform[point][frame])
            for point in range(transform.points)
        )
        assert float(weight) == pytest.approx(float(frame == output + tap), abs=1e-12)


@pytest.mark.parametrize(("outputs", "products"), [(2, 4), (4, 6)])
def test_it_takes_one_product_per_point(outputs, products):
    assert TRANSFORMS[outputs].points == products < 3 * outputs
