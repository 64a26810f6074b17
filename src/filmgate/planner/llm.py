"""A language-model question answered: what holds it, first token, next tokens, cost a million."""

import math
from dataclasses import dataclass

from filmgate.catalog.book import Catalog
from filmgate.catalog.calibrations import Calibration
from filmgate.catalog.gpus import Gpu
from filmgate.catalog.llms import Llm
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
from filmgate.planner.llm_memory import LlmBudget, cache_capacity, llm_budget, usable_bytes
from filmgate.planner.llm_time import (
    Serving,
    decode_step,
    first_token_seconds,
    kv_bytes,
    prefill_step,
    steady_token_seconds,
    weight_bytes,
)
from filmgate.planner.machines import Machine, machines_for
from filmgate.planner.memory import GIB, SAFETY_FACTOR
from filmgate.planner.money import DAYS_A_MONTH

ENGINE = "vllm"
ANSWER_TOKENS = 256
BATCHES = (1, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True, slots=True)
class LlmAsk:
    """A serving question; `context` is prompt and answer together, `concurrency` sequences at once."""

    model: Llm
    precision: str = "bf16"
    kv_precision: str = "bf16"
    context: int = 8192
    concurrency: int = 1
    ttft_ms: float | None = None
    tbt_ms: float | None = None
    region: str = "us-east-1"
    gpu: Gpu | None = None
    instances: tuple[str, ...] = ()
    safety_factor: float = SAFETY_FACTOR
    answer_tokens: int = ANSWER_TOKENS

    @property
    def answer(self) -> int:
        return max(1, min(self.answer_tokens, self.context // 2))

    @property
    def prompt(self) -> int:
        return max(1, self.context - self.answer)


@dataclass(frozen=True, slots=True)
class LlmCandidate:
    """One machine and tensor-parallel group that serves the model."""

    machine: Machine
    serving: Serving
    memory: LlmBudget
    first_token: float
    between_tokens: float
    concurrency: int

    @property
    def tokens_per_second(self) -> float:
        """Of the whole machine: every group of GPUs serves its own sequences."""
        groups = self.machine.gpus // self.serving.gpus
        return groups * self.concurrency / self.between_tokens

    @property
    def usd_per_million(self) -> float | None:
        hourly = self.machine.usd_per_hour
        return hourly / 3600 / self.tokens_per_second * 1e6 if hourly is not None else None


def plan_llm(ask: LlmAsk, catalog: Catalog, calibration: Calibration) -> Answer:
    """The whole answer to a language-model question."""
    machines, rejected = machines_for(catalog, ask.region, gpu=ask.gpu, names=ask.instances)
    outcomes = [evaluate_llm(ask, machine, calibration) for machine in machines]
    candidates = [o for o in outcomes if isinstance(o, LlmCandidate)]
    candidates.sort(key=lambda c: (c.machine.usd_per_hour or math.inf, c.between_tokens))
    rejected = [o for o in outcomes if isinstance(o, Rejected)] + rejected
    sources = _sources(ask, calibration, candidates)
    question = (
        f"{ask.model.name}, {ask.precision} weights, {ask.concurrency} sequences of {ask.context} tokens"
        f"{f' on {ask.gpu.name}' if ask.gpu else f' in {ask.region}'}"
    )
    if not candidates:
        verdict = _impossible(ask, rejected)
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
        fleet=_fleet(ask, best),
        cost=_cost(ask, best, catalog, calibration),
        options=tuple(_option(c, i, calibration) for i, c in enumerate(candidates, start=1)),
        rejected=tuple(rejected),
        sources=sources,
    )


def evaluate_llm(ask: LlmAsk, machine: Machine, calibration: Calibration) -> LlmCandidate | Rejected:
    """The smallest group of GPUs that holds the model and its cache and keeps the latency asked for."""
    refused: Rejected | None = None
    for gpus in (n for n in (1, 2, 4, 8) if n <= machine.gpus):
        serving = Serving(ask.model, machine.gpu, gpus, ask.precision, ask.kv_precision, ENGINE)
        memory = llm_budget(serving, ask.context, ask.concurrency, ask.safety_factor)
        if memory.peak_bytes > usable_bytes(serving):
            reason = (
                f"{memory.peak_bytes / GIB:.1f} GiB a GPU on {gpus} x {machine.gpu.name}, "
                f"{usable_bytes(serving) / GIB:.1f} GiB usable"
            )
            refused = Rejected(
                machine.name, reason, memory.peak_bytes / GIB, usable_bytes(serving) / GIB, "GiB"
            )
            continue
        first = first_token_seconds(serving, ask.prompt, calibration.constants)
        between = steady_token_seconds(
            serving, ask.concurrency, ask.prompt, ask.answer, calibration.constants
        )
        late = _late(ask, machine, gpus, first * 1e3, between * 1e3)
        if late is None:
            return LlmCandidate(machine, serving, memory, first, between, ask.concurrency)
        refused = late
    assert refused is not None, "every machine has at least one GPU"  # noqa: S101 - an invariant
    return refused


def _late(ask: LlmAsk, machine: Machine, gpus: int, first_ms: float, between_ms: float) -> Rejected | None:
    on = f"on {gpus} x {machine.gpu.name}"
    if ask.ttft_ms is not None and first_ms > ask.ttft_ms:
        reason = f"first token after {first_ms:.0f} ms {on}, {ask.ttft_ms:g} ms allowed"
        return Rejected(machine.name, reason, first_ms, ask.ttft_ms, "ms to first token")
    if ask.tbt_ms is not None and between_ms > ask.tbt_ms:
        reason = f"{between_ms:.0f} ms between tokens {on}, {ask.tbt_ms:g} ms allowed"
        return Rejected(machine.name, reason, between_ms, ask.tbt_ms, "ms between tokens")
    return None


def _verdict(ask: LlmAsk, best: LlmCandidate) -> str:
    price = best.machine.usd_per_hour
    money = (
        f", ${price:.2f} an hour, ${best.usd_per_million:.2f} a million tokens" if price is not None else ""
    )
    weights = weight_bytes(ask.model, ask.precision) / GIB
    cache = kv_bytes(ask.model, ask.context, ask.kv_precision) / GIB
    return (
        f"Serve {ask.model.name} on {best.machine.name}, tensor parallel {best.serving.gpus}: "
        f"first token {best.first_token * 1e3:.0f} ms, {best.between_tokens * 1e3:.0f} ms between tokens at "
        f"{ask.concurrency} sequences{money}; weights {weights:.1f} GiB, cache {cache:.2f} GiB a sequence."
    )


def _impossible(ask: LlmAsk, rejected: list[Rejected]) -> str:
    """Which limit is the nearest miss, and how to move it."""
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
    cache = ask.concurrency * kv_bytes(ask.model, ask.context, ask.kv_precision)
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
    step = decode_step(serving, ask.concurrency, ask.context, constants)
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


def _fleet(ask: LlmAsk, best: LlmCandidate) -> Json:
    groups = best.machine.gpus // best.serving.gpus
    return {
        "pattern": "always warm",
        "reasons": ["tokens are awaited by a person or a program; a cold start takes minutes"],
        "machine": best.machine.name,
        "gpus_per_replica": best.serving.gpus,
        "replicas_per_instance": groups,
        "sequences_per_instance": groups * ask.concurrency,
        "cache_on_nvme": "helps where sequences pause: their cache is read back instead of recomputed",
    }


def _cost(ask: LlmAsk, best: LlmCandidate, catalog: Catalog, calibration: Calibration) -> Json:
    hourly = best.machine.usd_per_hour
    tokens_a_day = best.tokens_per_second * 86_400
    rivals: list[Json] = []
    for api in catalog.text_apis.values():
        share = ask.prompt / max(ask.answer, 1)
        blended = api.usd_per_million_output + share * api.usd_per_million_input
        crossing = hourly * 24 / blended * 1e6 / tokens_a_day if hourly else None
        rivals.append(
            {
                "id": api.id,
                "usd_per_million_output_with_prompts": blended,
                "break_even_tokens_per_day": hourly * 24 / blended * 1e6 if hourly else None,
                "share_of_capacity_at_break_even": crossing,
                "note": "another model, shown for its price",
            }
        )
    levers: list[Json] = []
    for name, precision, kv in (
        ("weights in fp8", "fp8", ask.kv_precision),
        ("cache in fp8", ask.precision, "fp8"),
    ):
        serving = Serving(ask.model, best.machine.gpu, best.serving.gpus, precision, kv, ENGINE)
        after = steady_token_seconds(serving, ask.concurrency, ask.prompt, ask.answer, calibration.constants)
        levers.append({"name": name, "saving": 1 - after / best.between_tokens})
    most = cache_capacity(best.serving, ask.context)
    full = steady_token_seconds(best.serving, most, ask.prompt, ask.answer, calibration.constants)
    levers.append(
        {
            "name": f"batch of {most:.0f} instead of {ask.concurrency}",
            "saving": 1 - (full / most) / (best.between_tokens / ask.concurrency),
        }
    )
    return {
        "currency": "USD",
        "machine": best.machine.name,
        "usd_per_hour": hourly,
        "usd_per_day": hourly * 24 if hourly else None,
        "usd_per_month": hourly * 24 * DAYS_A_MONTH if hourly else None,
        "usd_per_million_tokens": best.usd_per_million,
        "managed": rivals,
        "levers": levers,
    }


def _option(candidate: LlmCandidate, place: int, calibration: Calibration) -> Option:
    half = calibration.llm_spread
    hourly = candidate.machine.usd_per_hour
    return Option(
        rank=place,
        name=candidate.machine.name,
        gpu=candidate.machine.gpu.name,
        gpus_per_replica=candidate.serving.gpus,
        replicas=candidate.machine.gpus // candidate.serving.gpus,
        instances=1,
        seconds=candidate.between_tokens,
        low=candidate.between_tokens * math.exp(-half),
        high=candidate.between_tokens * math.exp(half),
        latency_p95=candidate.first_token,
        utilisation=1.0,
        usd_per_hour=hourly,
        usd_per_day=hourly * 24 if hourly is not None else None,
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
