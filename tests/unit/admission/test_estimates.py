"""Estimates start with the rates of the model card and follow measurements."""

from dataclasses import replace

import pytest

from filmgate.admission.estimates import REFRESH_SECONDS, Estimator, learn, predict, work_units
from filmgate.jobs import StageSeconds
from filmgate.models.cards import open_registry
from filmgate.models.quality import full_steps
from filmgate.scheduling.records import Measurement
from tests.tickets import SPEC

CARD = open_registry("flipbook").default


def measured(denoise, *, spec=SPEC):
    return Measurement(spec, StageSeconds(text=0.2, denoise=denoise, decode=1.0, upload=0.1))


class MeasurementReader:
    """A JobReader that only has measurements."""

    def __init__(self):
        self.found = []
        self.reads = 0

    def measurements(self, _model):
        self.reads += 1
        return self.found


def test_without_measurements_the_rates_of_the_card_apply():
    assert learn(CARD, []) == CARD.rates


def test_many_measurements_outweigh_the_card():
    rates = learn(CARD, [measured(20.0)] * 100)
    assert predict(SPEC, rates, SPEC.steps).denoise == pytest.approx(20.0, rel=0.05)


def test_one_unusual_job_hardly_changes_the_estimate():
    steady = learn(CARD, [measured(20.0)] * 50)
    odd = learn(CARD, [measured(20.0)] * 50 + [measured(2000.0)])
    assert odd.denoise == pytest.approx(steady.denoise, rel=0.02)


def test_work_is_proportional_to_frames_and_steps():
    long = replace(SPEC, seconds=SPEC.seconds * 2)
    assert work_units(long) == 2 * work_units(SPEC)
    once, twice = predict(SPEC, CARD.rates, 8), predict(SPEC, CARD.rates, 16)
    assert twice.denoise == 2 * once.denoise
    assert twice.decode == once.decode


def test_a_draft_is_predicted_and_learned_by_the_passes_it_computes():
    estimator = Estimator(MeasurementReader())
    long = replace(SPEC, steps=30)
    draft = replace(long, quality="draft")
    share = full_steps("draft", 30, has_guidance=False) / 30
    full = estimator.estimate(long, CARD).denoise
    assert estimator.estimate(draft, CARD).denoise == pytest.approx(share * full)
    assert share < 1
    learned = learn(CARD, [measured(20.0 * share, spec=draft)] * 5)
    assert learned.denoise == pytest.approx(learn(CARD, [measured(20.0, spec=long)] * 5).denoise)


def test_the_estimator_reads_measurements_again_after_the_refresh_interval():
    reader, now = MeasurementReader(), [0.0]
    estimator = Estimator(reader, clock=lambda: now[0])
    first = estimator.estimate(SPEC, CARD)
    reader.found = [measured(500.0)] * 10
    assert estimator.estimate(SPEC, CARD) == first
    assert reader.reads == 1
    now[0] += REFRESH_SECONDS
    assert estimator.estimate(SPEC, CARD).denoise > first.denoise
