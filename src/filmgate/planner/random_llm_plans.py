"""Random questions about language models, and the properties that every answer must have."""

import random
from collections.abc import Iterator
from dataclasses import replace

from filmgate.catalog.calibrations import Calibration
from filmgate.catalog.catalog import Catalog
from filmgate.planner.answer import Answer
from filmgate.planner.fleet.answer import LlmFleetAnswer, RequestArrivals
from filmgate.planner.fleet.traffic import TrafficShape
from filmgate.planner.intervals import llm_upper_end
from filmgate.planner.llm.answer import llm_usd_per_day, plan_llm
from filmgate.planner.llm.arrivals import pace_of
from filmgate.planner.llm.question import LlmQuestion
from filmgate.planner.llm.serving import ENGINE, USABLE_SHARE
from filmgate.planner.llm.simulation import first_tokens_of_an_hour
from filmgate.planner.llm.step_time import Serving
from filmgate.planner.percentiles import percentile_of_sorted
from filmgate.planner.plan_checks import (
    REGIONS,
    ROUNDING,
    PlanCheck,
    Subject,
    check_answers,
    disagreeing,
    disagreeing_json,
    fleet_size,
    unbalanced,
)
from filmgate.planner.report.numbers import seconds, usd
from filmgate.planner.report.rows import spare


def check_llm_plans(catalog: Catalog, calibration: Calibration, questions: int) -> PlanCheck:
    subject = Subject(
        "language-model", random_llm_question, plan_llm, llm_usd_per_day, _problems, _harder, _overrun
    )
    return check_answers(subject, catalog, calibration, questions)


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


def _harder(question: LlmQuestion) -> Iterator[tuple[str, LlmQuestion]]:
    requests, ttft, tbt = question.requests_per_day or 1.0, question.ttft_ms, question.tbt_ms
    yield "more requests", replace(question, requests_per_day=requests * 1.5)
    yield "an earlier first token", replace(question, ttft_ms=ttft * 0.8 if ttft else 5000)
    yield "less time between tokens", replace(question, tbt_ms=tbt * 0.8 if tbt else 100)
    yield "more spare machines", replace(question, spare_machines=2)


def _overrun(
    question: LlmQuestion, answer: Answer, catalog: Catalog, calibration: Calibration, seed: int
) -> float | None:
    """p95 of the first token, at the upper end and with the spare machines lost, relative to its limit."""
    if question.ttft_ms is None:
        return None
    fleet, arrivals, traffic = answer.fleet, _arrivals(answer), question.traffic
    assert isinstance(fleet, LlmFleetAnswer), "the question is about tokens"
    assert traffic is not None, "random questions have requests"
    gpu = catalog.gpu(answer.options[0].gpu)
    serving = Serving(
        question.model,
        gpu,
        fleet.gpus_per_replica,
        question.precision,
        question.kv_precision,
        ENGINE,
        USABLE_SHARE,
    )
    load = question.load(arrivals.sequences_per_replica)
    pace = pace_of(serving, load, calibration.constants).slower(llm_upper_end(gpu, calibration))
    tokens = first_tokens_of_an_hour(traffic, pace, fleet_size(answer).needed_replicas, seed)
    return percentile_of_sorted(tokens, 0.95) * 1e3 / question.ttft_ms


def _problems(question: LlmQuestion, answer: Answer) -> Iterator[str]:
    cost, arrivals, size = answer.cost, _arrivals(answer), fleet_size(answer)
    assert cost is not None, "a possible plan has a cost"
    yield from unbalanced(answer)
    yield from _too_slow(question, arrivals)
    figures = {
        "machines": f"{size.instances} x {cost.machine}, {spare(size)}",
        "per month": usd(cost.usd_per_month),
        "per million": usd(cost.usd_per_million_tokens),
        "first token": seconds(arrivals.first_token_ms_p95 / 1e3),
        "worst first token": seconds(arrivals.worst_first_token_ms_p95 / 1e3),
        "worst time between tokens": seconds(arrivals.worst_between_tokens_ms / 1e3),
    }
    yield from disagreeing(answer, figures)
    yield from (
        f"{name} {figure} is not in the verdict"
        for name, figure in figures.items()
        if "token" in name and figure not in answer.verdict
    )
    if f"${cost.usd_per_day:,.0f} per day" not in answer.verdict:
        yield "the verdict states another daily cost"
    yield from disagreeing_json(answer)


def _too_slow(question: LlmQuestion, arrivals: RequestArrivals) -> Iterator[str]:
    """Latencies above their limits, at the upper end of the interval and with the spare machines lost."""
    for name, worst, limit in (
        ("the first token", arrivals.worst_first_token_ms_p95, question.ttft_ms),
        ("between tokens", arrivals.worst_between_tokens_ms, question.tbt_ms),
    ):
        if limit is not None and worst > limit * (1 + ROUNDING):
            yield f"{name}: up to {worst} ms, and {limit} ms are allowed"


def _arrivals(answer: Answer) -> RequestArrivals:
    assert isinstance(answer.fleet, LlmFleetAnswer), "the question is about tokens"
    assert answer.fleet.arrivals is not None, "random questions have requests"
    return answer.fleet.arrivals
