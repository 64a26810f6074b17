"""Fits the constants of the roofline to runs: least squares on log errors, regularised by priors.

A prior keeps a constant stable that few runs depend on. Validation leaves a run out of the fit that predicts
it (validation.py).
"""

import math
from collections import UserDict
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
    """Measured seconds and their prediction."""

    id: str
    seconds: float
    predict: Predict


@dataclass(frozen=True, slots=True)
class Tangent:
    """The log error of a prediction, and its slope by each constant that it depends on."""

    error: float
    slopes: Mapping[str, float]


Tangents = dict[Observation, Tangent]


NOISE = 0.10  # assumed relative error of a published time
STEP = 1e-4
MAX_ROUNDS = 25


def fit(
    observations: Sequence[Observation],
    priors: Mapping[str, Prior],
    start: Constants | None = None,
    at_start: Tangents | None = None,
) -> dict[str, float]:
    """Gauss-Newton from `start` or the priors; stops when every constant changes by less than 0.001.

    Fits with the same `start` can share `at_start`: the first one adds the tangents, the others use them.
    """
    names = list(priors)
    values = dict(start) if start else {name: prior.value for name, prior in priors.items()}
    for number in range(MAX_ROUNDS):
        known = at_start if number == 0 and at_start is not None else {}
        known |= {seen: _tangent(seen, names, values) for seen in observations if seen not in known}
        matrix, right = _normal_equations([known[seen] for seen in observations], priors, values)
        moves = solve(matrix, right)
        largest = max((abs(move) for move in moves), default=0.0)
        scale = min(1.0, 0.5 / largest) if largest else 1.0
        for name, move in zip(names, moves, strict=True):
            values[name] += scale * move
        if largest < 1e-3:
            break
    return values


def _normal_equations(
    tangents: Sequence[Tangent], priors: Mapping[str, Prior], values: Constants
) -> tuple[list[list[float]], list[float]]:
    index = {name: i for i, name in enumerate(priors)}
    matrix = [[0.0] * len(index) for _ in index]
    right = [0.0] * len(index)
    for name, i in index.items():
        precision = 1.0 / priors[name].spread ** 2
        matrix[i][i] += precision
        right[i] += precision * (priors[name].value - values[name])
    for tangent in tangents:
        # Huber weights: beyond two standard errors the influence is constant, which limits outliers.
        weight = 1.0 / NOISE**2 * min(1.0, 2 * NOISE / max(abs(tangent.error), 1e-9))
        active = [(index[name], slope) for name, slope in tangent.slopes.items() if slope]
        for i, slope in active:
            right[i] += weight * slope * tangent.error
            for j, other in active:
                matrix[i][j] += weight * slope * other
    return matrix, right


def _tangent(seen: Observation, names: Sequence[str], values: Constants) -> Tangent:
    used = _UsedConstants(values)
    base = math.log(seen.predict(used))
    slopes = {
        name: (math.log(seen.predict({**values, name: values[name] + STEP})) - base) / STEP
        for name in names
        if name in used.names
    }
    return Tangent(math.log(seen.seconds) - base, slopes)


class _UsedConstants(UserDict[str, float]):
    """Constants, with the names of those that a prediction has read: the slope by any other is zero."""

    def __init__(self, values: Constants) -> None:
        self.names: set[str] = set()
        super().__init__(values)

    def __getitem__(self, name: str) -> float:
        self.names.add(name)
        return super().__getitem__(name)


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
