"""Random questions about language models, and the properties that every answer must have."""

import random
from dataclasses import replace

from filmgate.planner.fleet.money import Terms
from filmgate.planner.fleet.traffic import TrafficShape, traffic_of
from filmgate.planner.intervals import llm_upper_end
from filmgate.planner.llm.answer import plan_llm as plan
from filmgate.planner.llm.answer import ranked
from filmgate.planner.llm.arrivals import pace_of
from filmgate.planner.llm.question import LlmQuestion
from filmgate.planner.llm.serving import ENGINE, USABLE_SHARE
from filmgate.planner.llm.simulation import first_tokens_of_an_hour
from filmgate.planner.llm.step_time import Serving
from filmgate.planner.percentiles import percentile_of_sorted
from filmgate.planner.report.numbers import seconds, usd
from filmgate.planner.report.rows import spare
from tests.plan_checks.check import REGIONS, ROUNDING, find_bill_errors, find_report_differences

__all__ = ["NAME", "draw", "harder", "overrun", "plan", "problems", "usd_per_day"]
NAME = "language-model"


def draw(catalog, seed):
    """A question about requests that arrive at random."""
    random_ = random.Random(seed)
    model = random_.choice(list(catalog.llms.values()))
    return LlmQuestion(
        model,
        random_.choice((model.native_precision, "fp8")),
        random_.choice(("bf16", "fp8")),
        context=random_.choice((1024, 4096, 8192)),
        concurrency=random_.choice((16, 64, 256)),
        ttft_ms=random_.choice((None, round(10 ** random_.uniform(2, 4)))),
        tbt_ms=random_.choice((None, round(10 ** random_.uniform(1, 2.3)))),
        region=random_.choice(REGIONS),
        answer_tokens=random_.choice((64, 256, 512)),
        traffic=traffic_of(float(round(10 ** random_.uniform(2, 6.5))), random_.choice(list(TrafficShape))),
        cached_tokens=random_.choice((0, 0, 500)),
        terms=Terms(random_.choice((None, 0.3))),
    )


def usd_per_day(question, catalog, calibration):
    """The cost of the answer alone, which is much faster; None if there is no answer."""
    _, candidates, _ = ranked(question, catalog, calibration)
    return candidates[0].usd_per_day if candidates else None


def harder(question):
    traffic, ttft, tbt = question.traffic, question.ttft_ms, question.tbt_ms
    yield "more requests", replace(question, traffic=traffic_of(traffic.per_day * 1.5, traffic.shape))
    yield "an earlier first token", replace(question, ttft_ms=ttft * 0.8 if ttft else 5000)
    yield "less time between tokens", replace(question, tbt_ms=tbt * 0.8 if tbt else 100)
    yield "more spare machines", replace(question, spare_machines=2)


def overrun(question, answer, catalog, calibration, seed):
    """p95 of the first token, at the upper end and with the spare machines lost, relative to its limit."""
    if question.ttft_ms is None:
        return None
    fleet, gpu = answer.fleet, catalog.gpu(answer.options[0].gpu)
    precisions = (question.precision, question.kv_precision)
    serving = Serving(question.model, gpu, fleet.gpus_per_replica, *precisions, ENGINE, USABLE_SHARE)
    load = question.load(fleet.arrivals.sequences_per_replica)
    pace = pace_of(serving, load, calibration.constants).slower(llm_upper_end(gpu, calibration))
    tokens = first_tokens_of_an_hour(question.traffic, pace, fleet.size.needed_replicas, seed)
    return percentile_of_sorted(tokens, 0.95) * 1e3 / question.ttft_ms


def problems(question, answer):
    cost, arrivals, size = answer.cost, answer.fleet.arrivals, answer.fleet.size
    yield from find_bill_errors(answer)
    for name, worst, limit in (
        ("the first token", arrivals.worst_first_token_ms_p95, question.ttft_ms),
        ("between tokens", arrivals.worst_between_tokens_ms, question.tbt_ms),
    ):
        if limit is not None and worst > limit * (1 + ROUNDING):
            yield f"{name}: up to {worst} ms, and {limit} ms are allowed"
    figures = {
        "machines": f"{size.instances} x {cost.machine}, {spare(size)}",
        "per month": usd(cost.usd_per_month),
        "per million": usd(cost.usd_per_million_tokens),
        "first token": seconds(size.latency_p95),
        "worst first token": seconds(arrivals.worst_first_token_ms_p95 / 1e3),
        "worst time between tokens": seconds(arrivals.worst_between_tokens_ms / 1e3),
    }
    yield from find_report_differences(answer, figures)
    yield from (
        f"{name} {figure} is not in the verdict"
        for name, figure in figures.items()
        if "token" in name and figure not in answer.verdict
    )
    if f"{usd(cost.usd_per_day)} per day" not in answer.verdict:
        yield "the verdict states another daily cost"
