"""Errors of held-out predictions are within the documented limits."""

import pytest

from filmgate.planner.validation.fit import fit
from filmgate.planner.validation.observations import of_video
from filmgate.planner.validation.page import to_validation_page
from filmgate.planner.validation.priors import VIDEO_PRIORS
from filmgate.planner.validation.validate import validate


@pytest.fixture(scope="module")
def found(catalog):
    return validate(catalog, "2026-11-15")


def test_the_median_errors_of_time_are_no_worse_than_they_were(found):
    assert round(found.median_error("video"), 3) <= 0.088
    assert round(found.median_error("measured"), 3) <= 0.069
    assert round(found.median_error("llm"), 3) <= 0.100


def test_no_single_gpu_row_is_off_by_more_than_a_third(found):
    rows = [row for row in found.counted("video", "measured", "llm") if row.gpus == 1]
    assert max(abs(row.error) for row in rows) <= 1 / 3


def test_models_with_many_and_with_few_experts_are_predicted_alike(found):
    """Few tokens per expert are padded to whole tiles (ADR 0103)."""
    errors = {row.id: row.error for row in found.counted("llm")}
    assert abs(errors["gs-20b-h100"]) <= 0.2  # 32 experts
    assert abs(errors["gs-120b-h100"]) <= 0.2  # 128 experts


def test_first_tokens_under_load_are_within_a_quarter_although_no_constant_was_fitted_to_them(found):
    rows = found.counted("llm-load")
    assert len(rows) == 3
    assert all(abs(row.error) <= 0.25 for row in rows), rows


def test_every_memory_row_is_within_10_per_cent(found):
    assert {row.id: row.error for row in found.counted("memory") if abs(row.error) > 0.10} == {}
    assert len(found.counted("memory")) >= 25


def test_the_memory_of_our_measured_decodes_is_within_2_per_cent(found):
    decodes = [row for row in found.counted("memory") if "decode" in row.id]
    assert len(decodes) == 4
    assert all(abs(row.error) < 0.02 for row in decodes), decodes


def test_figures_that_are_not_comparable_are_shown_but_not_counted(found):
    reserved = [row for row in found.rows if row.id.startswith("memory-cog2b-")]
    assert len(reserved) == 3
    assert all(not row.is_counted and "reserved" in row.note for row in reserved)


def test_the_strict_error_is_within_35_per_cent(found):
    strict = [abs(row.strict_error) for row in found.counted("video")]
    assert sorted(strict)[len(strict) // 2] <= 0.15
    assert max(strict) <= 0.35


def test_every_outlier_is_explained(found):
    for row in found.rows:
        if row.is_counted and abs(row.error) > 0.25:
            assert len(row.note) > 20, row.id


def test_every_published_run_is_in_the_table(found, catalog):
    text = to_validation_page(found)
    for run in (*catalog.runs.video, *catalog.runs.llm, *catalog.runs.memory):
        assert run.id in text, run.id


def test_a_run_does_not_influence_its_own_prediction(catalog, found):
    runs = [run for run in catalog.runs.video if run.kind != "bound"]
    victim = next(run for run in runs if run.id == "predict2-480p-l40s")
    others = [of_video(run, catalog) for run in runs if run.id != victim.id]
    alone = of_video(victim, catalog).predict(fit(others, VIDEO_PRIORS))
    row = next(row for row in found.rows if row.id == victim.id)
    assert row.predicted == pytest.approx(alone, rel=0.05)


@pytest.mark.parametrize("groups", [("video", "measured"), ("llm",)])
def test_an_interval_holds_75_to_90_per_cent_of_rows_that_neither_fit_nor_width_has_seen(found, groups):
    assert 0.75 <= found.coverage(*groups) <= 0.90


def test_the_shipped_calibration_is_the_fitted_one(found, calibration):
    assert calibration.constants == pytest.approx(found.calibration.constants, abs=1e-3)
    assert (calibration.video_spread, calibration.llm_spread) == (
        found.calibration.video_spread,
        found.calibration.llm_spread,
    )
