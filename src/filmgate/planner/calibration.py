"""Fits the constants of the roofline to runs: least squares on log errors, regularised by priors.

A prior keeps a constant stable that few runs depend on. Validation leaves a run out of the fit that predicts
it (validation.py).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Constants = Mapping[str, float]
Predict = Callable[[Constants], float]


@dataclass(frozen=True, slots=True)
class Prior:
    """The expected value of a constant and its standard deviation, both as logarithms."""

    value: float
    spread: float


@dataclass(frozen=True, slots=True)
class Observation:
    """Measured seconds and their prediction.

    The prediction does not depend on constants whose name starts with one of `independent_of`; the fit skips
    their slopes.
    """

    id: str
    seconds: float
    predict: Predict
    independent_of: tuple[str, ...] = ()


NOISE = 0.10  # assumed relative error of a published time
STEP = 1e-4
MAX_ROUNDS = 25


def fit(
    observations: Sequence[Observation], priors: Mapping[str, Prior], start: Constants | None = None
) -> dict[str, float]:
    """Gauss-Newton from `start` or the priors; stops when every constant changes by less than 0.001."""
    names = list(priors)
    values = dict(start) if start else {name: prior.value for name, prior in priors.items()}
    for _ in range(MAX_ROUNDS):
        matrix, right = _normal_equations(observations, priors, values)
        moves = solve(matrix, right)
        largest = max((abs(move) for move in moves), default=0.0)
        scale = min(1.0, 0.5 / largest) if largest else 1.0
        for name, move in zip(names, moves, strict=True):
            values[name] += scale * move
        if largest < 1e-3:
            break
    return values


def _normal_equations(
    observations: Sequence[Observation], priors: Mapping[str, Prior], values: Constants
) -> tuple[list[list[float]], list[float]]:
    names = list(priors)
    size = len(names)
    matrix = [[0.0] * size for _ in range(size)]
    right = [0.0] * size
    for i, name in enumerate(names):
        precision = 1.0 / priors[name].spread ** 2
        matrix[i][i] += precision
        right[i] += precision * (priors[name].value - values[name])
    for seen in observations:
        base = math.log(seen.predict(values))
        error = math.log(seen.seconds) - base
        slopes = [
            0.0 if name.startswith(seen.independent_of) else _slope(seen, values, name, base)
            for name in names
        ]
        # Huber weights: beyond two standard errors the influence is constant, which limits outliers.
        weight = 1.0 / NOISE**2 * min(1.0, 2 * NOISE / max(abs(error), 1e-9))
        active = [i for i in range(size) if slopes[i]]
        for i in active:
            right[i] += weight * slopes[i] * error
            for j in active:
                matrix[i][j] += weight * slopes[i] * slopes[j]
    return matrix, right


def _slope(seen: Observation, values: Constants, name: str, base: float) -> float:
    return (math.log(seen.predict({**values, name: values[name] + STEP})) - base) / STEP


def solve(matrix: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
    """Gaussian elimination with partial pivoting, for a small positive definite matrix."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    size = len(rows)
    for i in range(size):
        pivot = max(range(i, size), key=lambda r: abs(rows[r][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for r in range(i + 1, size):
            factor = rows[r][i] / rows[i][i]
            for c in range(i, size + 1):
                rows[r][c] -= factor * rows[i][c]
    answer = [0.0] * size
    for i in reversed(range(size)):
        known = sum(rows[i][c] * answer[c] for c in range(i + 1, size))
        answer[i] = (rows[i][size] - known) / rows[i][i]
    return answer
