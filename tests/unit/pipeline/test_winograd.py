"""Winograd's transforms are a convolution over time, exactly."""

import itertools
from fractions import Fraction

import pytest

from filmgate.pipeline.decode.fast.winograd import TRANSFORMS


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=lambda t: f"F({t.outputs},3)")
def test_each_output_is_three_taps_over_three_frames(transform):
    frames, taps = transform.outputs + 2, 3
    for output, frame, tap in itertools.product(range(transform.outputs), range(frames), range(taps)):
        weight = sum(
            Fraction(transform.join[output][slot])
            * Fraction(transform.taps[slot][tap])
            * Fraction(transform.split[slot][frame])
            for slot in range(transform.slots)
        )
        assert float(weight) == pytest.approx(float(frame == output + tap), abs=1e-12)


@pytest.mark.parametrize(("outputs", "products"), [(2, 4), (4, 6)])
def test_it_takes_one_product_a_slot(outputs, products):
    assert TRANSFORMS[outputs].slots == products < 3 * outputs
