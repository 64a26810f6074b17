"""Answers a language-model question: ranks the machines and describes the best one."""

import math
from collections.abc import Sequence
from dataclasses import replace

from filmgate.catalog.calibrations import Calibration
from filmgate.catalog.catalog import Catalog
from filmgate.catalog.gpus import GIB
from filmgate.planner.answer import (
    Answer,
    BatchTime,
    MemoryAnswer,
    MemoryLever,
    Option,
    Rejected,
    StageAnswer,
    TimeAnswer,
    TokenTimes,
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
from filmgate.planner.llm.memory import cache_capacity, usable_bytes
from filmgate.planner.llm.plan_b import llm_plan_b
from filmgate.planner.llm.question import LlmQuestion
from filmgate.planner.llm.serving import LlmCandidate, confirmed_llm, decide_llm, evaluate_llm
from filmgate.planner.llm.step_time import (
    decode_step,
    kv_bytes,
    prefill_step,
    steady_token_seconds,
    weight_bytes,
)
from filmgate.planner.machines import (
    Machine,
    check_residency,
    machines_for,
    no_machine,
    not_in_region,
    unpriced_region,
)
from filmgate.planner.report.numbers import counted, seconds

ASSUMPTIONS = (
    "the engine is vLLM, with its default steps and continuous batching",
    "a replica is at most 8 GPUs of one machine; replicas over several machines are not planned",
    "answers vary in length by half in both directions",
    f"a fleet is at most {MAX_UTILISATION:.0%} busy in the busiest hour, at the upper end of the interval",
    "weights are in GPU memory; a model in CPU memory is slower by orders of magnitude and not planned",
    *START_ASSUMPTIONS,
)
LIMITS = {"ttft_ms": "--ttft-ms", "tbt_ms": "--tbt-ms"}
BATCHES = (1, 4, 8, 16, 32, 64, 128, 256)


def plan_llm(question: LlmQuestion, catalog: Catalog, calibration: Calibration) -> Answer:
    machines, candidates, rejected = _ranked(question, catalog, calibration)
    candidates = [confirmed_llm(one) if i == 0 else one for i, one in enumerate(candidates)]
    unpriced = "" if question.gpu else unpriced_region(catalog, question.region)
    answer = Answer(
        question=describe(question),
        unit="million tokens",
        verdict="",
        is_possible=bool(candidates),
        options=tuple(llm_option(c, i) for i, c in enumerate(candidates, start=1)),
        rejected=rejected,
        sources=_sources(question, calibration, candidates),
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
        plan_b=llm_plan_b(candidates, cost, catalog, calibration),
        plots=llm_plots(best, cost, calibration),
    )


def llm_usd_per_day(question: LlmQuestion, catalog: Catalog, calibration: Calibration) -> float | None:
    """The cost of the answer alone, which is much faster; None if there is no answer or no price."""
    _, candidates, _ = _ranked(question, catalog, calibration)
    return candidates[0].usd_per_day if candidates else None


def _ranked(
    question: LlmQuestion, catalog: Catalog, calibration: Calibration
) -> tuple[list[Machine], list[LlmCandidate], tuple[Rejected, ...]]:
    """The machines, the candidates among them, cheapest first, and the rejections."""
    elsewhere = check_residency(catalog, question.region, question.residency)
    machines, unusable = machines_for(catalog, question.region, gpu=question.gpu, names=question.instances)
    measured = measured_machines(question, catalog, calibration.constants)
    machines = [*machines, *measured]
    unusable = without_measured(unusable, measured)
    outcomes = [] if elsewhere else [evaluate_llm(question, machine, calibration) for machine in machines]
    candidates = decide_llm([o for o in outcomes if isinstance(o, LlmCandidate)], calibration)
    return machines, candidates, (*elsewhere, *(o for o in outcomes if isinstance(o, Rejected)), *unusable)


def describe(question: LlmQuestion) -> str:
    amount = (
        f"{question.concurrency} sequences"
        if question.requests_per_day is None
        else f"{question.requests_per_day:,.0f} requests per day ({question.shape})"
    )
    parts = [f"{question.model.name}, {question.precision} weights, {amount} of {question.context} tokens"]
    if question.ttft_seconds is not None:
        parts.append(f"first token within {seconds(question.ttft_seconds)} at p95")
    if question.tbt_seconds is not None:
        parts.append(f"at most {seconds(question.tbt_seconds)} between tokens")
    if question.residency:
        parts.append(f"data stays in {question.residency.upper()}")
    parts.append(f"on {question.gpu.name}" if question.gpu else f"in {question.region}")
    return "; ".join(parts)


def _verdict(best: LlmCandidate) -> str:
    question = best.question
    weights = weight_bytes(question.model, question.precision) / GIB
    cache = kv_bytes(question.model, question.context, question.kv_precision) / GIB
    held = f"weights {weights:.1f} GiB, KV cache {cache:.2f} GiB per sequence."
    where = f"Serve {question.model.name} on {best.machine.name}, tensor parallel {best.serving.gpus}"
    per_million = (
        f"${best.usd_per_million:,.2f} per million answer tokens" if best.usd_per_million is not None else ""
    )
    if best.fleet is not None:
        fleet, lost = best.fleet, ""
        machines = counted(fleet.instances, "machine")
        if fleet.spare_instances:
            machines += f" ({fleet.spare_instances} spare)"
            lost = f" with {fleet.spare_instances} lost"
        daily = f", ${best.usd_per_day:,.0f} per day, {per_million}" if best.usd_per_day is not None else ""
        return (
            f"{where}: {counted(fleet.replicas, 'replica')} on {machines}, "
            f"{_latencies(best, lost)}{daily}; {held}{tight(fleet, 'tokens')}"
        )
    price = best.machine.usd_per_hour
    cost = f", ${price:.2f} per hour, {per_million}" if price is not None else ""
    return f"{where}, with {counted(best.concurrency, 'sequence')}: {_latencies(best)}{cost}; {held}"


def _latencies(best: LlmCandidate, lost: str = "") -> str:
    """Both latencies: expected, at most, and their limits."""
    question, found = best.question, []
    for name, expected, worst, limit in (
        ("first token at p95", best.first.p95, best.worst_first_token, question.ttft_seconds),
        ("between tokens", best.between_tokens, best.worst_between_tokens, question.tbt_seconds),
    ):
        most = f", at most {seconds(worst)}{lost}"
        found.append(f"{name} {seconds(expected)}{most}{f' (limit {seconds(limit)})' if limit else ''}")
    return ", ".join(found)


def _compared(best: LlmCandidate, cost: CostAnswer) -> str:
    """The same model at a managed API, if the catalog has it."""
    same = next((q for q in cost.managed if isinstance(q, TokenQuote) and q.is_same_model), None)
    own = best.usd_per_million
    if same is None or own is None:
        return ""
    price = same.usd_per_million_output_with_prompts
    if not same.is_available:
        return f" {same.name} would cost ${price:.2f}: {same.note}."
    side = "less" if price < own else "more"
    return f" {same.name} costs {side}: ${price:.2f} per million answer tokens with their prompts."


def _impossible(
    question: LlmQuestion,
    rejected: Sequence[Rejected],
    machines: Sequence[Machine],
    catalog: Catalog,
    calibration: Calibration,
) -> str:
    """The limit that is missed by the least, and how to change it."""
    if rejected and rejected[0].name == question.region:
        return not_in_region(catalog, rejected[0], question.residency or "")
    late = [r for r in rejected if r.unit.startswith("ms") and r.number is not None]
    if late:
        nearest = min(late, key=lambda r: (r.number or math.inf) / (r.limit or 1.0))
        machine = next(machine for machine in machines if machine.name == nearest.name)
        allow = _to_allow(question, nearest, machine, calibration)
        return (
            f"Nothing is fast enough: {nearest.name} is closest, {nearest.reason}. "
            f"Allow {allow}, or lower --context or --concurrency."
        )
    small = closest(rejected, "GiB")
    if small:
        return (
            f"Nothing fits: {small.name} is closest, {small.reason}. "
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
    question, gpus = best.question, best.serving.gpus
    weights = weight_bytes(question.model, question.precision)
    cache = best.concurrency * kv_bytes(question.model, question.context, question.kv_precision)
    peak, stage = best.memory.peak_bytes, best.memory.peak_stage
    changes = []
    if question.precision == "bf16":
        changes.append(("weights in fp8", (weights - weight_bytes(question.model, "fp8")) / gpus))
    if question.kv_precision == "bf16":
        changes.append(("KV cache in fp8", cache / 2 / gpus))
    changes.append(("half of the KV cache on NVMe, for idle sequences", cache / 2 / gpus))
    return MemoryAnswer(
        lines=best.memory.charged_lines(),
        peak_bytes=peak,
        peak_stage=stage,
        capacity_bytes=usable_bytes(best.serving),
        safety_factor=question.safety_factor,
        placement=f"{gpus} GPUs",
        levers=tuple(MemoryLever(name, peak - saved, stage, saved, None) for name, saved in changes),
    )


def _time(best: LlmCandidate, calibration: Calibration) -> TimeAnswer:
    question, constants, serving = best.question, calibration.constants, best.serving
    _, is_extrapolated = llm_spread(serving.gpu, calibration)
    note = f"interval of every time: {best.upper_end - 1:.0%}, from held-out runs"
    if is_extrapolated:
        note += f"; wider because {widening(serving.gpu)}"
    prefill = prefill_step(serving, question.prompt, 1, constants)
    step = decode_step(serving, best.sequences, question.context, constants)
    capacity = cache_capacity(serving, question.context)
    batches = []
    for batch in (size for size in BATCHES if size <= capacity):
        each = steady_token_seconds(serving, batch, question.prompt, question.answer, constants)
        batches.append(BatchTime(batch, each * 1e3, batch / each))
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
            capacity,
            tuple(batches),
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
        usd_per_unit=candidate.usd_per_million,
        placement=f"{candidate.serving.precision}, tensor parallel {candidate.serving.gpus}",
        peak_bytes=candidate.memory.peak_bytes,
    )


def _sources(
    question: LlmQuestion, calibration: Calibration, candidates: list[LlmCandidate]
) -> tuple[str, ...]:
    model = question.model
    found = [
        dated_source("model", model.id, model.source, model.as_of),
        f"calibration: {calibration.source} ({calibration.as_of})",
    ]
    for candidate in candidates[:3]:
        found += candidate.machine.sources()
    return tuple(dict.fromkeys(found))
