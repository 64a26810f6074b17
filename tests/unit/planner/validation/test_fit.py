"""The fit recovers the constants behind the data and limits the influence of outliers."""

import math

import pytest

from filmgate.planner.validation.fit import Observation, Prior, fit, solve

PRIORS = {"rate": Prior(0.0, 1.0), "overhead": Prior(0.0, 1.0)}


def observe(work, seconds):
    return Observation(f"w{work}", seconds, lambda c: work / math.exp(c["rate"]) + math.exp(c["overhead"]))


def truth(work):
    return work / 4.0 + 2.0


def test_solve_inverts_a_small_system():
    assert solve([[2.0, 1.0], [1.0, 3.0]], [3.0, 5.0]) == pytest.approx([0.8, 1.4])


def test_the_fit_recovers_the_constants_behind_the_runs():
    found = fit([observe(w, truth(w)) for w in (1, 5, 20, 80, 200)], PRIORS)
    assert math.exp(found["rate"]) == pytest.approx(4.0, rel=0.03)
    assert math.exp(found["overhead"]) == pytest.approx(2.0, rel=0.05)


def test_one_wrong_run_changes_the_constants_only_a_little():
    runs = [observe(w, truth(w)) for w in (1, 5, 20, 80, 120, 160)]
    found = fit([*runs, observe(200, truth(200) * 0.5)], PRIORS)
    assert math.exp(found["rate"]) == pytest.approx(4.0, rel=0.15)


def test_without_runs_the_fit_returns_the_priors():
    assert fit([], PRIORS) == {"rate": 0.0, "overhead": 0.0}


def test_a_run_does_not_change_a_constant_that_it_is_independent_of():
    row = Observation("x", 100.0, lambda c: math.exp(c["rate"]))
    assert fit([row], PRIORS)["overhead"] == 0.0
