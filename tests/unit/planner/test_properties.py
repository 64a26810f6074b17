"""Random questions: every verdict is feasible in a simulation that the planner did not use.

`make plan-check` asks 300 questions with the same code.
"""

from dataclasses import replace

import pytest

from filmgate.planner.llm.answer import llm_usd_per_day, plan_llm
from filmgate.planner.random_llm_plans import check_llm_plans, random_llm_question
from filmgate.planner.random_plans import check_plans, random_question
from filmgate.planner.video.answer import plan_video, video_usd_per_day

QUESTIONS = 10
LLM_QUESTIONS = 4


@pytest.fixture(scope="module")
def found(catalog, calibration):
    return check_plans(catalog, calibration, QUESTIONS)


def test_bill_reports_capabilities_and_order_of_costs_hold_for_every_question(found):
    assert found.problems == ()
    assert found.questions == QUESTIONS
    assert found.compared == 5 * found.possible > 0


def test_ninety_five_per_cent_of_the_verdicts_are_feasible_and_the_rest_are_flagged(found):
    assert found.with_target >= QUESTIONS / 8
    assert found.late_share <= 0.05
    assert found.late_unflagged == 0


def test_language_models_cost_more_for_more_requests_and_tighter_targets_and_are_in_time(
    catalog, calibration
):
    found = check_llm_plans(catalog, calibration, LLM_QUESTIONS)
    assert found.problems == ()
    assert found.compared == 5 * found.possible > 0
    assert found.with_target >= LLM_QUESTIONS / 3
    assert (found.late, found.late_unflagged) == (0, 0)


def test_every_limit_on_sequences_is_simulated_and_not_only_the_best_by_formulas(catalog, calibration):
    question = random_llm_question(catalog, 113)
    loose, tight = (
        plan_llm(replace(question, tbt_ms=limit), catalog, calibration).cost.usd_per_day
        for limit in (None, 100)
    )
    assert loose <= tight


def test_a_verdict_that_misses_in_some_simulations_says_so(catalog, calibration):
    answer = plan_video(random_question(catalog, 92), catalog, calibration)
    size = answer.fleet.size
    assert 0 < size.late_runs < size.confirming_runs
    assert (
        f"Tight: with the spare machines lost and clips at the upper end, {size.late_runs} of"
        in answer.verdict
    )


def test_every_possible_plan_has_a_plan_b_inside_its_jurisdiction(catalog, calibration):
    for seed in range(6):
        question = random_question(catalog, seed)
        answer = plan_video(question, catalog, calibration)
        if answer.is_possible:
            assert {way.name for way in answer.plan_b} >= {"another machine", "fewer steps", "the provider"}
        if answer.verdict.startswith("Use "):
            assert catalog.region(question.region).jurisdiction == "US"


def test_the_cost_alone_is_that_of_the_answer(catalog, calibration):
    clips, requests = random_question(catalog, 0), random_llm_question(catalog, 1)
    video, llm = plan_video(clips, catalog, calibration), plan_llm(requests, catalog, calibration)
    assert video_usd_per_day(clips, catalog, calibration) == video.cost.usd_per_day
    assert llm_usd_per_day(requests, catalog, calibration) == llm.cost.usd_per_day
    impossible = replace(requests, ttft_ms=0.001)
    assert llm_usd_per_day(impossible, catalog, calibration) is None
