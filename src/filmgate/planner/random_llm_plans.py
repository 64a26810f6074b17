"""Random questions about language models, and the properties that every answer must have."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace

from filmgate.catalog.calibrations import Calibration
from filmgate.catalog.catalog import Catalog
from filmgate.planner.answer import Answer
from filmgate.planner.fleet.answer import LlmFleetAnswer, RequestArrivals
from filmgate.planner.fleet.traffic import TrafficShape
from filmgate.planner.llm.answer import plan_llm
from filmgate.planner.llm.arrivals import pace_of
from filmgate.planner.llm.serving import ENGINE, USABLE_SHARE, LlmQuestion
from filmgate.planner.llm.simulation import first_tokens_of_an_hour
from filmgate.planner.llm.step_time import Serving
from filmgate.planner.random_plans import (
    CHECK_SEED,
    RECORD_DAY,
    REGIONS,
    PlanCheck,
    Tally,
    cheaper,
    dearer_catalog,
    is_close,
)
from filmgate.planner.report.numbers import seconds, usd
from filmgate.planner.report.page import to_page
from filmgate.planner.report.record import to_record
from filmgate.planner.report.tables import tables


def random_llm_question(catalog: Catalog, seed: int) -> LlmQuestion:
    """A question about requests that arrive at random."""
    draw = random.Random(seed)  # noqa: S311 - a sample, not a secret
    model = draw.choice(list(catalog.llms.values()))
    return LlmQuestion(
        model,
        draw.choice((model.native_precision, "fp8")),
        draw.choice(("bf16", "fp8")),
        context=draw.choice((1024, 4096, 8192)),
        concurrency=draw.choice((16, 64, 256)),
        ttft_ms=draw.choice((None, round(10 ** draw.uniform(2, 4)))),
        tbt_ms=draw.choice((None, round(10 ** draw.uniform(1, 2.3)))),
        region=draw.choice(REGIONS),
        answer_tokens=draw.choice((64, 256, 512)),
        requests_per_day=float(round(10 ** draw.uniform(2, 6.5))),
        shape=draw.choice(list(TrafficShape)),
        cached_tokens=draw.choice((0, 0, 500)),
        commit_discount=draw.choice((None, 0.3)),
    )


def check_llm_plans(catalog: Catalog, calibration: Calibration, questions: int) -> PlanCheck:
    """Asks this many random questions and checks every answer, alone and against harder questions."""
    tally, dearer = Tally(), dearer_catalog(catalog)
    for seed in range(questions):
        question = random_llm_question(catalog, seed)
        answer = plan_llm(question, catalog, calibration)
        if not answer.is_possible:
            continue
        tally.possible += 1
        found = [*unbalanced(question, answer), *disagreeing(answer)]
        for name, harder, facts in _harder(question, catalog, dearer):
            tally.compared += 1
            found += cheaper(name, answer, plan_llm(harder, facts, calibration))
        tally.problems += [f"language-model question {seed}: {problem}" for problem in found]
        _count_lateness(tally, question, answer, catalog, calibration, CHECK_SEED + seed)
    return tally.result(questions)


def _harder(
    question: LlmQuestion, catalog: Catalog, dearer: Catalog
) -> Iterator[tuple[str, LlmQuestion, Catalog]]:
    requests, ttft, tbt = question.requests_per_day or 1.0, question.ttft_ms, question.tbt_ms
    yield "more requests", replace(question, requests_per_day=requests * 1.5), catalog
    yield "an earlier first token", replace(question, ttft_ms=ttft * 0.8 if ttft else 5000), catalog
    yield "less time between tokens", replace(question, tbt_ms=tbt * 0.8 if tbt else 100), catalog
    yield "dearer prices", question, dearer


def _count_lateness(
    tally: Tally,
    question: LlmQuestion,
    answer: Answer,
    catalog: Catalog,
    calibration: Calibration,
    seed: int,
) -> None:
    if question.ttft_ms is None:
        return
    arrivals = _arrivals(answer)
    again = first_token_again(question, answer, catalog, calibration, seed)
    is_late = again * 1e3 > question.ttft_ms * (1 + 1e-9)
    tally.with_target += 1
    tally.late += is_late
    tally.flagged += arrivals.late_runs > 0
    tally.late_unflagged += is_late and not arrivals.late_runs


def first_token_again(
    question: LlmQuestion, answer: Answer, catalog: Catalog, calibration: Calibration, seed: int
) -> float:
    """p95 of the seconds to the first token, with arrivals that the planner did not use."""
    fleet, arrivals, traffic = answer.fleet, _arrivals(answer), question.traffic
    assert isinstance(fleet, LlmFleetAnswer), "the question is about tokens"
    assert traffic is not None, "random questions have requests"
    serving = Serving(
        question.model,
        catalog.gpu(answer.options[0].gpu),
        fleet.gpus_per_replica,
        question.precision,
        question.kv_precision,
        ENGINE,
        USABLE_SHARE,
    )
    pace = pace_of(serving, question.load(arrivals.sequences_per_replica), calibration.constants)
    return first_tokens_of_an_hour(traffic, pace, arrivals.replicas, seed).percentile(0.95)


def unbalanced(question: LlmQuestion, answer: Answer) -> Iterator[str]:
    """Where bill, fleet, targets and ranking contradict each other."""
    cost, arrivals = answer.cost, _arrivals(answer)
    assert cost is not None, "a possible plan has a cost"
    parts = sum(part.usd_per_day for part in cost.purchase)
    if not is_close(parts, cost.usd_per_day):
        yield f"purchases of {parts} per day and a bill of {cost.usd_per_day}"
    if sum(part.instances for part in cost.purchase) != arrivals.instances:
        yield "the purchases are not the machines of the fleet"
    if answer.options[0].usd_per_day != min(option.usd_per_day or 0.0 for option in answer.options):
        yield "the first option is not the cheapest"
    if question.ttft_ms is not None and arrivals.first_token_ms_p95 > question.ttft_ms * (1 + 1e-9):
        yield f"the first token takes {arrivals.first_token_ms_p95} ms and may take {question.ttft_ms}"
    if question.tbt_ms is not None and arrivals.between_tokens_ms > question.tbt_ms * (1 + 1e-9):
        yield f"{arrivals.between_tokens_ms} ms between tokens and {question.tbt_ms} are allowed"


def disagreeing(answer: Answer) -> Iterator[str]:
    """Numbers that text, JSON, page and record do not share."""
    cost, arrivals = answer.cost, _arrivals(answer)
    assert cost is not None, "a possible plan has a cost"
    texts = {
        "text": "\n".join(cell for table in tables(answer) for row in table.rows for cell in row),
        "page": to_page(answer, RECORD_DAY).replace("\u00a0", " "),
        "record": to_record(answer, RECORD_DAY),
    }
    wanted = {
        "per month": usd(cost.usd_per_month or 0.0),
        "per million": usd(cost.usd_per_million_tokens or 0.0),
        "first token": seconds(arrivals.first_token_ms_p95 / 1e3),
    }
    for name, figure in wanted.items():
        yield from (
            f"{name} {figure} is not in the {kind}" for kind, text in texts.items() if figure not in text
        )
    document = answer.as_json()
    fleet, bill = document["fleet"], document["cost"]
    assert isinstance(fleet, Mapping), "a possible plan has a fleet"
    assert isinstance(bill, Mapping), "a possible plan has a cost"
    if fleet["replicas"] != arrivals.replicas or not is_close(float(bill["usd_per_day"]), cost.usd_per_day):
        yield "JSON has other replicas or another cost"
    if answer.verdict not in texts["record"]:
        yield "the verdict is not in the record"
    if f"${cost.usd_per_day:,.0f} per day" not in answer.verdict:
        yield "the verdict states another daily cost"


def _arrivals(answer: Answer) -> RequestArrivals:
    assert isinstance(answer.fleet, LlmFleetAnswer), "the question is about tokens"
    assert answer.fleet.arrivals is not None, "random questions have requests"
    return answer.fleet.arrivals
