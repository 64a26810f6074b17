"""Estimates start at the card's guess and follow what was measured."""

from dataclasses import replace

import pytest

from filmgate.admission.estimates import REFRESH_SECONDS, Estimator, learn, predict, work_units
from filmgate.jobs import Route, StageSeconds
from filmgate.models.cards import open_registry
from filmgate.scheduling.base import Measurement
from tests.tickets import SPEC

CARD = open_registry("flipbook").default


def measured(denoise, *, spec=SPEC, route=Route.GPU):
    seconds = StageSeconds(text=0.2, denoise=denoise, decode=1.0, upload=0.1)
    return Measurement(spec, route, "cpu", seconds, 0.0)


class Shelf:
    """A book that knows only measurements."""

    def __init__(self):
        self.known = []
        self.reads = 0

    def measurements(self, _model):
        self.reads += 1
        return self.known


def test_without_a_measurement_the_card_speaks():
    assert learn(CARD, [], Route.GPU) == CARD.rates


def test_many_measurements_outweigh_the_card():
    rates = learn(CARD, [measured(20.0)] * 100, Route.GPU)
    assert predict(SPEC, rates, SPEC.steps).denoise == pytest.approx(20.0, rel=0.05)


def test_one_odd_job_does_not_move_the_estimate_far():
    steady = learn(CARD, [measured(20.0)] * 50, Route.GPU)
    odd = learn(CARD, [measured(20.0)] * 50 + [measured(2000.0)], Route.GPU)
    assert odd.denoise == pytest.approx(steady.denoise, rel=0.02)


def test_another_route_teaches_nothing():
    assert learn(CARD, [measured(20.0, route=Route.MANAGED)], Route.GPU) == CARD.rates


def test_twice_the_frames_are_twice_the_work_and_steps_count():
    long = replace(SPEC, seconds=SPEC.seconds * 2)
    assert work_units(long) == 2 * work_units(SPEC)
    once, twice = predict(SPEC, CARD.rates, 8), predict(SPEC, CARD.rates, 16)
    assert twice.denoise == 2 * once.denoise
    assert twice.decode == once.decode


def test_the_estimator_learns_as_jobs_finish_but_does_not_ask_every_time():
    book, now = Shelf(), [0.0]
    estimator = Estimator(book, clock=lambda: now[0])
    first = estimator.estimate(SPEC, CARD)
    book.known = [measured(500.0)] * 10
    assert estimator.estimate(SPEC, CARD) == first
    assert book.reads == 1
    now[0] += REFRESH_SECONDS
    assert estimator.estimate(SPEC, CARD).denoise > first.denoise
