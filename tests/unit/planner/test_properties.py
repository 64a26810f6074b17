"""Random questions: every verdict is feasible in a simulation that the planner did not use.

`make plan-check` asks 300 questions with the same code.
"""

from dataclasses import replace

import pytest

from filmgate.planner.llm.answer import plan_llm
from filmgate.planner.video.answer import plan_video
from tests.plan_checks import llm, video
from tests.plan_checks.__main__ import section
from tests.plan_checks.check import check_answers

QUESTIONS = 10
LLM_QUESTIONS = 4


@pytest.fixture(scope="module")
def found(catalog, calibration):
    return check_answers(video, catalog, calibration, QUESTIONS)


def test_bill_reports_capabilities_and_order_of_costs_hold_for_every_question(found):
    assert found.problems == ()
    assert found.questions == QUESTIONS
    assert found.compared == 5 * found.possible > 0


def test_ninety_five_per_cent_of_the_verdicts_are_feasible_and_the_rest_are_flagged(found):
    assert found.with_target >= QUESTIONS / 8
    assert found.late_share <= 0.05
    assert found.late_unflagged == 0


def test_the_page_states_the_figures_of_the_check(found):
    text = section([found, found])
    assert f"| questions | {QUESTIONS} | {QUESTIONS} |" in text
    assert "| properties that do not hold | 0 | 0 |" in text
    assert found.passes
    assert not replace(found, problems=("a bill",)).passes
    assert not replace(found, late_unflagged=1).passes


def test_language_models_cost_more_for_more_requests_and_tighter_targets_and_are_in_time(
    catalog, calibration
):
    found = check_answers(llm, catalog, calibration, LLM_QUESTIONS)
    assert found.problems == ()
    assert found.compared == 5 * found.possible > 0
    assert found.with_target >= LLM_QUESTIONS / 3
    assert (found.late, found.late_unflagged) == (0, 0)


def test_every_limit_on_sequences_is_simulated_and_not_only_the_best_by_formulas(catalog, calibration):
    question = llm.draw(catalog, 113)
    loose, tight = (
        plan_llm(replace(question, tbt_ms=limit), catalog, calibration).cost.usd_per_day
        for limit in (None, 100)
    )
    assert loose <= tight


def test_a_verdict_that_misses_in_some_simulations_says_so(catalog, calibration):
    answer = plan_video(video.draw(catalog, 92), catalog, calibration)
    size = answer.fleet.size
    assert 0 < size.late_runs < size.confirming_runs
    assert (
        f"Tight: with the spare machines lost and clips at the upper end, {size.late_runs} of"
        in answer.verdict
    )


def test_every_possible_plan_has_a_plan_b_inside_its_jurisdiction(catalog, calibration):
    for seed in range(6):
        question = video.draw(catalog, seed)
        answer = plan_video(question, catalog, calibration)
        is_managed = answer.verdict.startswith("Use ")
        if answer.is_possible:
            last = "your own fleet" if is_managed else "the provider"
            assert {way.name for way in answer.plan_b} >= {"another machine", "fewer steps", last}
        if is_managed:
            assert catalog.region(question.region).jurisdiction == "US"


def test_the_cost_alone_is_that_of_the_answer(catalog, calibration):
    clips, requests = video.draw(catalog, 0), llm.draw(catalog, 1)
    films, texts = plan_video(clips, catalog, calibration), plan_llm(requests, catalog, calibration)
    assert video.usd_per_day(clips, catalog, calibration) == films.cost.usd_per_day
    assert llm.usd_per_day(requests, catalog, calibration) == texts.cost.usd_per_day
    impossible = replace(requests, ttft_ms=0.001)
    assert llm.usd_per_day(impossible, catalog, calibration) is None
