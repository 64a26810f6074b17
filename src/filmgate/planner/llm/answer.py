"""A language-model question answered: what holds it, first token, next tokens, cost a million."""

import math

from filmgate.catalog.calibrations import Calibration
from filmgate.catalog.catalog import Catalog
from filmgate.planner.answer import (
    Answer,
    Json,
    MemoryAnswer,
    MemoryLever,
    MemoryPart,
    Option,
    Rejected,
    StageAnswer,
    TimeAnswer,
)
from filmgate.planner.llm.cost import llm_cost, llm_fleet, llm_plots
from filmgate.planner.llm.memory import cache_capacity, usable_bytes
from filmgate.planner.llm.serving import LlmAsk, LlmCandidate, evaluate_llm
from filmgate.planner.llm.step_time import (
    decode_step,
    kv_bytes,
    prefill_step,
    steady_token_seconds,
    weight_bytes,
)
from filmgate.planner.machines import allowed_regions, machines_for, residency_refusals
from filmgate.planner.video.memory import GIB

BATCHES = (1, 4, 8, 16, 32, 64, 128, 256)


def plan_llm(ask: LlmAsk, catalog: Catalog, calibration: Calibration) -> Answer:
    """The whole answer to a language-model question."""
    refusals = residency_refusals(catalog, ask.region, ask.residency)
    machines, rejected = machines_for(catalog, ask.region, gpu=ask.gpu, names=ask.instances)
    outcomes = [] if refusals else [evaluate_llm(ask, machine, calibration) for machine in machines]
    candidates = [o for o in outcomes if isinstance(o, LlmCandidate)]
    candidates.sort(key=lambda c: (c.usd_per_day or math.inf, c.between_tokens))
    rejected = refusals + [o for o in outcomes if isinstance(o, Rejected)] + rejected
    sources = _sources(ask, calibration, candidates)
    amount = (
        f"{ask.concurrency} sequences"
        if ask.requests_per_day is None
        else f"{ask.requests_per_day:,.0f} requests a day ({ask.shape})"
    )
    question = (
        f"{ask.model.name}, {ask.precision} weights, {amount} of {ask.context} tokens"
        f"{f' on {ask.gpu.name}' if ask.gpu else f' in {ask.region}'}"
    )
    if not candidates:
        verdict = _impossible(ask, rejected, catalog)
        return Answer(
            question, "million tokens", verdict, False, None, None, None, None, (), tuple(rejected), sources
        )
    best = candidates[0]
    return Answer(
        question=question,
        unit="million tokens",
        verdict=_verdict(ask, best),
        is_possible=True,
        memory=_memory(ask, best),
        time=_time(ask, best, calibration),
        fleet=llm_fleet(ask, best, calibration),
        cost=llm_cost(ask, best, catalog, calibration),
        options=tuple(_option(c, i, calibration) for i, c in enumerate(candidates, start=1)),
        rejected=tuple(rejected),
        sources=sources,
        plots=llm_plots(ask, best, catalog, calibration),
    )


def _verdict(ask: LlmAsk, best: LlmCandidate) -> str:
    price = best.machine.usd_per_hour
    money = (
        f", ${price:.2f} an hour, ${best.usd_per_million:.2f} a million tokens" if price is not None else ""
    )
    weights = weight_bytes(ask.model, ask.precision) / GIB
    cache = kv_bytes(ask.model, ask.context, ask.kv_precision) / GIB
    held = f"weights {weights:.1f} GiB, cache {cache:.2f} GiB a sequence."
    where = f"Serve {ask.model.name} on {best.machine.name}, tensor parallel {best.serving.gpus}"
    if best.fleet is not None:
        daily = (
            f", ${best.usd_per_day:,.0f} a day, ${best.usd_per_million:.2f} a million tokens"
            if best.usd_per_day is not None
            else ""
        )
        return (
            f"{where}: {best.fleet.replicas} replicas on {best.fleet.instances} machines, first token within "
            f"{best.fleet.latency_p95 * 1e3:.0f} ms at p95, {best.between_tokens * 1e3:.0f} ms between "
            f"tokens with {best.concurrency} sequences each{daily}; {held}"
        )
    return (
        f"{where}: first token {best.first_token * 1e3:.0f} ms, {best.between_tokens * 1e3:.0f} ms between "
        f"tokens at {best.concurrency} sequences{money}; {held}"
    )


def _impossible(ask: LlmAsk, rejected: list[Rejected], catalog: Catalog) -> str:
    """Which limit is the nearest miss, and how to move it."""
    if rejected and rejected[0].name == ask.region:
        names = allowed_regions(catalog, ask.residency or "")
        return f"Not in {ask.region}: {rejected[0].reason}; regions that may: {names}."
    late = [r for r in rejected if r.unit.startswith("ms") and r.number is not None]
    if late:
        nearest = min(late, key=lambda r: (r.number or math.inf) / (r.limit or 1.0))
        which = "--ttft-ms" if "first" in nearest.unit else "--tbt-ms"
        return (
            f"Nothing is fast enough: {nearest.name} comes nearest, {nearest.reason}. "
            f"Allow {which} {math.ceil(nearest.number or 0)}, or lower --context or --concurrency."
        )
    small = [r for r in rejected if r.unit == "GiB" and r.number is not None]
    if small:
        nearest = min(small, key=lambda r: (r.number or math.inf) - (r.limit or 0.0))
        return (
            f"Nothing holds it: {nearest.name} comes nearest, {nearest.reason}. "
            "Lower --precision, --concurrency or --context, or use --kv-precision fp8."
        )
    return (
        f"No machine is left in {ask.region}: {rejected[0].name}: {rejected[0].reason}."
        if rejected
        else (f"No machine is known in {ask.region}; give another --region.")
    )


def _memory(ask: LlmAsk, best: LlmCandidate) -> MemoryAnswer:
    lines = tuple(
        MemoryPart(line.name, line.bytes, ("decode",), "activations" in line.name)
        for line in best.memory.lines
    )
    gpus = best.serving.gpus
    weights = weight_bytes(ask.model, ask.precision)
    cache = best.concurrency * kv_bytes(ask.model, ask.context, ask.kv_precision)
    peak = best.memory.peak_bytes
    changes = (
        [("weights in fp8", (weights - weight_bytes(ask.model, "fp8")) / gpus)]
        if ask.precision == "bf16"
        else []
    )
    if ask.kv_precision == "bf16":
        changes.append(("KV cache in fp8", cache / 2 / gpus))
    changes.append(("half of the cache on NVMe, for idle sequences", cache / 2 / gpus))
    levers = tuple(MemoryLever(name, peak - saved, "decode", saved, None) for name, saved in changes)
    return MemoryAnswer(
        lines, peak, "decode", usable_bytes(best.serving), ask.safety_factor, f"{gpus} GPUs", levers
    )


def _time(ask: LlmAsk, best: LlmCandidate, calibration: Calibration) -> TimeAnswer:
    constants, serving = calibration.constants, best.serving
    half = calibration.llm_spread
    prefill = prefill_step(serving, ask.prompt, 1, constants)
    step = decode_step(serving, best.concurrency, ask.context, constants)
    batches: list[Json] = []
    for batch in BATCHES:
        if batch > cache_capacity(serving, ask.context):
            break
        each = steady_token_seconds(serving, batch, ask.prompt, ask.answer, constants)
        batches.append({"batch": batch, "between_tokens_ms": each * 1e3, "tokens_per_second": batch / each})
    return TimeAnswer(
        seconds_per_clip=None,
        low=best.between_tokens * math.exp(-half),
        high=best.between_tokens * math.exp(half),
        stages=tuple(
            StageAnswer(name, t.seconds, t.compute, t.weights + t.cache, t.interconnect, t.bound.value)
            for name, t in (("prefill", prefill), ("decode step", step))
        ),
        bound=step.bound.value,
        is_extrapolated=serving.gpu.name not in calibration.seen_gpus,
        note=f"low and high: seconds between tokens, {math.expm1(half):.0%} from held-out runs",
        tokens={
            "first_token_ms": best.first_token * 1e3,
            "between_tokens_ms": best.between_tokens * 1e3,
            "tokens_per_second": best.tokens_per_second,
            "most_sequences": cache_capacity(serving, ask.context),
            "by_batch": batches,
        },
    )


def _option(candidate: LlmCandidate, place: int, calibration: Calibration) -> Option:
    half, fleet = calibration.llm_spread, candidate.fleet
    return Option(
        rank=place,
        name=candidate.machine.name,
        gpu=candidate.machine.gpu.name,
        gpus_per_replica=candidate.serving.gpus,
        replicas=fleet.replicas if fleet else candidate.machine.gpus // candidate.serving.gpus,
        instances=fleet.instances if fleet else 1,
        seconds=candidate.between_tokens,
        low=candidate.between_tokens * math.exp(-half),
        high=candidate.between_tokens * math.exp(half),
        latency_p95=fleet.latency_p95 if fleet else candidate.first_token,
        utilisation=fleet.utilisation if fleet else 1.0,
        usd_per_hour=candidate.machine.usd_per_hour,
        usd_per_day=candidate.usd_per_day,
        usd_per_unit=candidate.usd_per_million,
        placement=f"{candidate.serving.precision}, tensor parallel {candidate.serving.gpus}",
        peak_bytes=candidate.memory.peak_bytes,
    )


def _sources(ask: LlmAsk, calibration: Calibration, candidates: list[LlmCandidate]) -> tuple[str, ...]:
    found = [
        f"model {ask.model.id}: {ask.model.source} ({ask.model.as_of})",
        f"calibration: {calibration.source} ({calibration.as_of})",
    ]
    for candidate in candidates[:3]:
        gpu, price = candidate.machine.gpu, candidate.machine.price
        found.append(f"GPU {gpu.name}: {gpu.source} ({gpu.as_of})")
        if price:
            found.append(f"price {price.instance} in {price.region}: {price.source} ({price.as_of})")
    return tuple(dict.fromkeys(found))
