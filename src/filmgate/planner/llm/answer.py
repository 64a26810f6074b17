"""Answers a language-model question: ranks the machines and describes the best one."""

import math
from collections.abc import Sequence
from dataclasses import replace

from filmgate.catalog.calibrations import Calibration
from filmgate.catalog.catalog import Catalog
from filmgate.catalog.gpus import GIB
from filmgate.planner.answer import (
    Answer,
    Kind,
    MemoryAnswer,
    MemoryLever,
    Option,
    Rejected,
    StageAnswer,
    TimeAnswer,
    TokenTimes,
    Unit,
    closest,
    dated_source,
)
from filmgate.planner.fleet.answer import CostAnswer, TokenQuote, tight
from filmgate.planner.fleet.sizing import MAX_UTILISATION
from filmgate.planner.fleet.starts import START_ASSUMPTIONS
from filmgate.planner.intervals import llm_spread, widening
from filmgate.planner.llm.cost import llm_cost, llm_fleet, llm_plots
from filmgate.planner.llm.loaded import token_percentiles
from filmgate.planner.llm.measured import measured_machines, without_measured
from filmgate.planner.llm.memory import llm_budget, usable_bytes
from filmgate.planner.llm.plan_b import llm_plan_b
from filmgate.planner.llm.question import LlmQuestion
from filmgate.planner.llm.serving import LlmCandidate, confirmed_llm, decide_llm, evaluate_llm
from filmgate.planner.llm.step_time import decode_step, fp8_changes, kv_bytes, prefill_step, weight_bytes
from filmgate.planner.machines import (
    Machine,
    check_residency,
    machine_sources,
    machines_for,
    no_machine,
    not_in_region,
    prices_of,
    unpriced_region,
)
from filmgate.planner.report.numbers import counted, digits, seconds, usd

ASSUMPTIONS = (
    "the engine is vLLM, with its default steps and continuous batching",
    "a replica is at most 8 GPUs of one machine; replicas over several machines are not planned",
    "answers vary in length by half in both directions",
    f"a fleet is at most {MAX_UTILISATION:.0%} busy in the busiest hour, at the upper end of the interval",
    "weights are in GPU memory; a model in CPU memory is slower by orders of magnitude and not planned",
    *START_ASSUMPTIONS,
)
LIMITS = {"ttft_ms": "--ttft-ms", "tbt_ms": "--tbt-ms"}


def plan_llm(question: LlmQuestion, catalog: Catalog, calibration: Calibration) -> Answer:
    machines, candidates, rejected = ranked(question, catalog, calibration)
    candidates[:1] = [confirmed_llm(best) for best in candidates[:1]]
    unpriced = "" if question.gpu else unpriced_region(catalog, question.region)
    answer = Answer(
        question=describe(question),
        kind=Kind.LLM,
        verdict="",
        is_possible=bool(candidates),
        options=tuple(llm_option(c, i) for i, c in enumerate(candidates, start=1)),
        rejected=rejected,
        sources=_sources(question, catalog, calibration, machines, candidates),
        assumptions=(*ASSUMPTIONS, unpriced.rstrip(".")) if unpriced else ASSUMPTIONS,
    )
    if not candidates:
        return replace(answer, verdict=_impossible(question, rejected, machines, catalog, calibration))
    best = candidates[0]
    cost = llm_cost(best, catalog, calibration)
    return replace(
        answer,
        verdict=f"{_verdict(best)}{_compared(best, cost)} {unpriced}".strip(),
        memory=_memory(best),
        time=_time(best, calibration),
        fleet=llm_fleet(best, calibration),
        cost=cost,
        plan_b=tuple(llm_plan_b(candidates, cost, catalog, calibration)),
        plots=llm_plots(best, cost, calibration),
    )


def ranked(
    question: LlmQuestion, catalog: Catalog, calibration: Calibration
) -> tuple[list[Machine], list[LlmCandidate], tuple[Rejected, ...]]:
    """The machines, the candidates among them, cheapest first, and the rejections."""
    elsewhere = check_residency(catalog, question.region, question.residency)
    machines, unusable = machines_for(catalog, question.region, gpu=question.gpu, names=question.instances)
    measured = measured_machines(question, catalog, calibration.constants)
    machines = [*machines, *measured]
    unusable = without_measured(unusable, measured)
    outcomes = [] if elsewhere else [evaluate_llm(question, machine, calibration) for machine in machines]
    candidates, too_many = decide_llm([o for o in outcomes if isinstance(o, LlmCandidate)], calibration)
    rejected = [o for o in outcomes if isinstance(o, Rejected)]
    return machines, candidates, (*elsewhere, *rejected, *too_many, *unusable)


def describe(question: LlmQuestion) -> str:
    amount = (
        counted(question.concurrency, "sequence")
        if question.traffic is None
        else f"{digits(question.traffic.per_day)} requests per day ({question.traffic.shape})"
    )
    parts = [f"{question.model.name}, {question.precision} weights, {amount} of {question.context} tokens"]
    if question.ttft_seconds is not None:
        parts.append(f"first token within {seconds(question.ttft_seconds)} at p95")
    if question.tbt_seconds is not None:
        parts.append(f"at most {seconds(question.tbt_seconds)} between tokens on average")
    if question.residency:
        parts.append(f"data stays in {question.residency}")
    parts.append(f"on {question.gpu.name}" if question.gpu else f"in {question.region}")
    return "; ".join(parts)


def _verdict(best: LlmCandidate) -> str:
    question, fleet, gpus = best.question, best.fleet, best.serving.gpus
    weights = weight_bytes(question.model, question.precision) / GIB
    cache = kv_bytes(question.model, question.context, question.kv_precision) / GIB
    each = "" if best.usd_per_unit is None else f"{usd(best.usd_per_unit)} per million answer tokens"
    if fleet is None:
        batch = counted(best.concurrency, "sequence")
        where = f"on {best.machine.name}, {counted(gpus, 'GPU')} and {batch} per replica"
        cost = f" It costs {usd(best.machine.usd_per_hour)} per hour, {each}." if each else ""
    else:
        spare = f" ({fleet.spare_instances} spare)" if fleet.spare_instances else ""
        where = (
            f"with {counted(fleet.replicas, 'replica')} on {fleet.instances} x {best.machine.name}{spare}, "
            f"{counted(gpus, 'GPU')} per replica"
        )
        cost = f" It costs {usd(best.usd_per_day)} per day, {each}." if each else ""
    return (
        f"Serve {question.model.name} {where}. {_latencies(best)}{cost} Weights take {weights:.1f} GiB, and "
        f"the KV cache {cache:.2f} GiB per sequence.{tight(fleet, 'tokens') if fleet else ''}"
    )


def _latencies(best: LlmCandidate) -> str:
    """Both latencies: expected, at the upper end, and their limits."""
    question, lost, found = best.question, "", []
    if best.fleet is not None and best.fleet.spare_instances:
        lost = f" with {counted(best.fleet.spare_instances, 'machine')} lost"
    for name, expected, worst, limit in (
        ("The first token takes {} at p95", best.first.p95, best.worst_first_token, question.ttft_seconds),
        (
            "The mean time between tokens is {}",
            best.between_tokens,
            best.worst_between_tokens,
            question.tbt_seconds,
        ),
    ):
        allowed = f" (limit {seconds(limit)})" if limit else ""
        upper_end = f"{seconds(worst)} at the upper end of the interval{lost}{allowed}"
        found.append(f"{name.format(seconds(expected))}, and {upper_end}.")
    return " ".join(found)


def _compared(best: LlmCandidate, cost: CostAnswer) -> str:
    """The same model at a managed API, if the catalog has it."""
    same = next((q for q in cost.managed if isinstance(q, TokenQuote) and q.is_same_model), None)
    own = best.usd_per_unit
    if same is None or own is None:
        return ""
    price = same.usd_per_million_output_with_prompts
    if not same.is_available:
        return f" {same.name} would cost {usd(price)}: {same.note}."
    side = "less" if price < own else "more"
    return f" {same.name} costs {side}: {usd(price)} per million answer tokens with their prompts."


def _impossible(
    question: LlmQuestion,
    rejected: Sequence[Rejected],
    machines: Sequence[Machine],
    catalog: Catalog,
    calibration: Calibration,
) -> str:
    """The limit that is missed by the least, and how to change it."""
    if rejected and rejected[0].name == question.region:
        return not_in_region(catalog, rejected[0], question.residency)
    crowded = next((r for r in rejected if r.unit == "replicas"), None)
    if crowded:
        return f"Too much for one fleet: {crowded.reason}. Use several fleets or regions."
    late = [r for r in rejected if r.unit.startswith("ms") and r.number is not None]
    if late:
        nearest = min(late, key=lambda r: (r.number or math.inf) / (r.limit or 1.0))
        machine = next(machine for machine in machines if machine.name == nearest.name)
        allow = _to_allow(question, nearest, machine, calibration)
        return (
            f"Nothing is fast enough. {nearest.name} is closest, but {nearest.reason}. "
            f"Allow {allow}, or lower --context or --concurrency."
        )
    small = closest(rejected, "GiB")
    if small:
        return (
            f"Nothing fits. {small.name} is closest, but {small.reason}. "
            "Lower --precision, --concurrency or --context, or use --kv-precision fp8."
        )
    return no_machine(rejected, question.region)


def _to_allow(
    question: LlmQuestion, missed: LlmCandidate | Rejected, machine: Machine, calibration: Calibration
) -> str:
    """The options that this machine misses, each with the value that it needs."""
    found: dict[str, int] = {}
    while isinstance(missed, Rejected) and missed.unit.startswith("ms") and len(found) < len(LIMITS):
        field = "ttft_ms" if "first" in missed.unit else "tbt_ms"
        found[field] = math.ceil(missed.number or 0)
        relaxed = replace(question, ttft_ms=found.get("ttft_ms", question.ttft_ms))
        relaxed = replace(relaxed, tbt_ms=found.get("tbt_ms", question.tbt_ms))
        missed = evaluate_llm(relaxed, machine, calibration)
    return " and ".join(f"{LIMITS[field]} {value}" for field, value in found.items())


def _memory(best: LlmCandidate) -> MemoryAnswer:
    question, serving, concurrency = best.question, best.serving, best.concurrency
    peak, stage, factor = best.memory.peak_bytes, best.memory.peak_stage, question.safety_factor
    cached = question.load(concurrency).cached
    changes = [
        (f"{name} in fp8", llm_budget(changed, question.context, concurrency, factor, cached).peak_bytes)
        for name, changed in fp8_changes(serving)
    ]
    (cache,) = (line.bytes for line in best.memory.lines if line.name.startswith("KV cache"))
    changes.append(("half of the KV cache on NVMe, for idle sequences", peak - cache / 2))
    return MemoryAnswer(
        lines=best.memory.charged_lines(),
        peak_bytes=peak,
        peak_stage=stage,
        capacity_bytes=usable_bytes(serving),
        safety_factor=factor,
        levers=tuple(MemoryLever(name, changed, stage, None) for name, changed in changes),
    )


def _time(best: LlmCandidate, calibration: Calibration) -> TimeAnswer:
    question, constants, serving = best.question, calibration.constants, best.serving
    _, is_extrapolated = llm_spread(serving.gpu, calibration)
    note = f"interval of every time: {best.upper_end - 1:.0%}, from held-out runs"
    if is_extrapolated:
        note += f"; wider because {widening(serving.gpu)}"
    prefill = prefill_step(serving, question.prompt, 1, constants)
    step = decode_step(serving, best.sequences, question.context, constants)
    return TimeAnswer(
        seconds_per_clip=None,
        low=best.between_tokens / best.upper_end,
        high=best.between_tokens * best.upper_end,
        stages=tuple(
            StageAnswer(name, t.seconds, t.compute, t.weights + t.cache, t.interconnect, t.bound.value)
            for name, t in (("prefill", prefill), ("decode step", step))
        ),
        bound=step.bound.value,
        is_extrapolated=is_extrapolated,
        note=note,
        tokens=TokenTimes(
            best.first.mean * 1e3,
            best.between_tokens * 1e3,
            best.tokens_per_second,
            best.first.p50 * 1e3,
            best.first.p95 * 1e3,
            best.first.p99 * 1e3,
            *(each * 1e3 for each in token_percentiles(serving, question.load(best.sequences), constants)),
        ),
    )


def llm_option(candidate: LlmCandidate, rank: int) -> Option:
    fleet = candidate.fleet
    return Option(
        rank=rank,
        name=candidate.machine.name,
        unit=Unit.TOKENS,
        gpu=candidate.machine.gpu.name,
        gpus_per_replica=candidate.serving.gpus,
        replicas=fleet.replicas if fleet else candidate.machine.gpus // candidate.serving.gpus,
        instances=fleet.instances if fleet else 1,
        seconds=candidate.between_tokens,
        low=candidate.between_tokens / candidate.upper_end,
        high=candidate.between_tokens * candidate.upper_end,
        latency_p95=candidate.first.p95,
        utilisation=fleet.utilisation if fleet else 1.0,
        usd_per_hour=candidate.machine.usd_per_hour,
        usd_per_day=candidate.usd_per_day,
        usd_per_unit=candidate.usd_per_unit,
        placement=f"{candidate.serving.precision}, tensor parallel {candidate.serving.gpus}",
        peak_bytes=candidate.memory.peak_bytes,
    )


def _sources(
    question: LlmQuestion,
    catalog: Catalog,
    calibration: Calibration,
    machines: Sequence[Machine],
    candidates: Sequence[LlmCandidate],
) -> tuple[str, ...]:
    """Every fact that the answer depends on, with its date."""
    model = question.model
    found = [
        dated_source("model", model.id, model.source, model.as_of),
        f"calibration: {calibration.source} ({calibration.as_of})",
    ]
    found += machine_sources(machines, prices_of(candidates[0].machine.name, catalog) if candidates else ())
    found += [dated_source("managed", api.id, api.source, api.as_of) for api in catalog.text_apis.values()]
    return tuple(dict.fromkeys(found))
