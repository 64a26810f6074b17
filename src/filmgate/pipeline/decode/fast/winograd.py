"""Convolution over time with half the products: Winograd's F(2, 3) and F(4, 3).

Three taps over `outputs + 2` frames cost `3 * outputs` products of a frame and a tap. Evaluating both as
polynomials at a few points costs one product a point, `outputs + 2` of them: 4 instead of 6, 6 instead of 12.

    y = join @ [(taps @ w) * (split @ d)]

The points of F(4, 3) are 0, 2/3, -2/3, 3/2, -3/2 and infinity: of the sets tried they spread the rounding
error most evenly over the four frames. In float16 it stays under half of what bfloat16 rounding alone makes.
"""

from dataclasses import dataclass
from fractions import Fraction

Matrix = tuple[tuple[float, ...], ...]

NEAR, FAR = Fraction(2, 3), Fraction(3, 2)


@dataclass(frozen=True, slots=True)
class Transform:
    """How `outputs` frames are made from `outputs + 2` (two of them from the cache) with one map a slot."""

    outputs: int
    split: Matrix  # slots x (outputs + 2): frames -> what each product reads
    taps: Matrix  # slots x 3: three taps -> each product's weights
    join: Matrix  # outputs x slots: products -> frames

    @property
    def slots(self) -> int:
        return len(self.split)


def _floats(*rows: tuple[Fraction | int, ...]) -> Matrix:
    return tuple(tuple(float(value) for value in row) for row in rows)


def _two() -> Transform:
    half = Fraction(1, 2)
    return Transform(
        outputs=2,
        split=_floats((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1)),
        taps=_floats((1, 0, 0), (half, half, half), (half, -half, half), (0, 0, 1)),
        join=_floats((1, 1, 1, 0), (0, 1, -1, -1)),
    )


def _four() -> Transform:
    a, b = NEAR, FAR
    aa, bb = a * a, b * b
    at_zero, at_near, at_far = aa * bb, 2 * aa * (aa - bb), 2 * bb * (bb - aa)
    return Transform(
        outputs=4,
        split=_floats(
            (aa * bb, 0, -aa - bb, 0, 1, 0),
            (0, -a * bb, -bb, a, 1, 0),
            (0, a * bb, -bb, -a, 1, 0),
            (0, -b * aa, -aa, b, 1, 0),
            (0, b * aa, -aa, -b, 1, 0),
            (0, aa * bb, 0, -aa - bb, 0, 1),
        ),
        taps=_floats(
            (1 / at_zero, 0, 0),
            (1 / at_near, a / at_near, aa / at_near),
            (1 / at_near, -a / at_near, aa / at_near),
            (1 / at_far, b / at_far, bb / at_far),
            (1 / at_far, -b / at_far, bb / at_far),
            (0, 0, 1),
        ),
        join=_floats(
            (1, 1, 1, 1, 1, 0),
            (0, a, -a, b, -b, 0),
            (0, aa, aa, bb, bb, 0),
            (0, a**3, -(a**3), b**3, -(b**3), 1),
        ),
    )


TRANSFORMS = {2: _two(), 4: _four()}
