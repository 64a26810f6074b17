"""Fleet, cost and plots of a served language model."""

import math
from dataclasses import replace

from filmgate.catalog.calibrations import Calibration
from filmgate.catalog.catalog import Catalog
from filmgate.catalog.managed import TextApi
from filmgate.planner.answer import Curve, Plots
from filmgate.planner.fleet.answer import (
    BlastRadius,
    CacheOnNvme,
    CostAnswer,
    CostLever,
    LlmFleetAnswer,
    NodeSoftware,
    RequestArrivals,
    TokenQuote,
)
from filmgate.planner.fleet.isolation import isolation_levels
from filmgate.planner.fleet.money import (
    DAYS_PER_MONTH,
    DailyCost,
    Order,
    break_even,
    exact_at,
    purchase_options,
    warnings,
)
from filmgate.planner.fleet.pattern import Pattern
from filmgate.planner.fleet.starts import NVME_BYTES_PER_SECOND, Start
from filmgate.planner.fleet.traffic import SECONDS_PER_DAY, shape_name, traffic_of
from filmgate.planner.llm.arrivals import fewest_by_formulas, pace_of
from filmgate.planner.llm.loaded import token_seconds
from filmgate.planner.llm.serving import LlmCandidate
from filmgate.planner.llm.simulation import first_token, request_fleet
from filmgate.planner.llm.step_time import fp8_changes, kv_bytes, prefill_step
from filmgate.planner.machines import prices_by_region

THOUSAND = 1e3


def llm_fleet(best: LlmCandidate, calibration: Calibration) -> LlmFleetAnswer:
    """The fleet is always warm, or partly stopped outside the busy hours, because clients wait for tokens."""
    machine = best.machine
    groups = machine.gpus // best.serving.gpus
    starts, fleet = best.cold_starts, best.fleet
    slowest = Start.slowest(starts).new_machine
    reasons = [f"clients wait for tokens, and a cold replica takes up to {slowest:.0f} s to start"]
    is_scheduled = fleet is not None and fleet.warm_instances < fleet.instances
    if is_scheduled:
        reasons.append("no requests arrive outside the busy hours, so one machine runs then")
    return LlmFleetAnswer(
        pattern=(Pattern.SCHEDULED if is_scheduled else Pattern.WARM).value,
        reasons=tuple(reasons),
        machine=machine.name,
        gpus_per_replica=best.serving.gpus,
        replicas_per_instance=groups,
        sequences_per_instance=groups * best.concurrency,
        size=fleet,
        arrivals=_arrivals(best),
        cold_start=starts,
        isolation=isolation_levels(machine.gpu, machine.instance, best.memory.peak_bytes),
        cache_on_nvme=_cache_on_nvme(best, calibration),
        software=NodeSoftware.for_gpu(machine.gpu),
        blast_radius=_blast_radius(best, slowest),
        engine_arguments=_engine_arguments(best),
    )


def _engine_arguments(best: LlmCandidate) -> str:
    """The options of `vllm serve` that this plan assumes."""
    question = best.question
    parts = [
        f"--tensor-parallel-size {best.serving.gpus}",
        f"--max-model-len {question.context}",
        f"--max-num-seqs {best.concurrency}",
        f"--gpu-memory-utilization {best.serving.usable_share:.2g}",
    ]
    if question.precision == "fp8" and question.model.native_precision != "fp8":
        parts.append("--quantization fp8")  # vLLM converts the weights when it loads them
    if question.kv_precision == "fp8":
        parts.append("--kv-cache-dtype fp8")
    if question.cached_tokens:
        parts.append("--enable-prefix-caching")
    return " ".join(parts)


def _arrivals(best: LlmCandidate) -> RequestArrivals | None:
    traffic = best.question.traffic
    if traffic is None:
        return None
    return RequestArrivals(
        requests_per_day=traffic.per_day,
        traffic=shape_name(traffic),
        peak_requests_per_second=traffic.peak_rate,
        sequences_per_replica=best.concurrency,
        worst_first_token_ms_p95=best.worst_first_token * 1e3,
        worst_between_tokens_ms=best.worst_between_tokens * 1e3,
    )


def _blast_radius(best: LlmCandidate, recovery_seconds: float) -> BlastRadius | None:
    fleet, demand = best.fleet, best.demand
    if fleet is None or demand is None:
        return None
    left = fleet.replicas - fleet.replicas_per_instance
    during = None
    if left:
        during = first_token(demand.traffic, demand.pace, left, is_simulated=fleet.is_simulated).p95
    return BlastRadius.of(fleet, during, recovery_seconds, best.sequences)


def _cache_on_nvme(best: LlmCandidate, calibration: Calibration) -> CacheOnNvme:
    question = best.question
    size = kv_bytes(question.model, question.context, question.kv_precision)
    read = size / NVME_BYTES_PER_SECOND
    again = prefill_step(best.serving, question.context, 1, calibration.constants).seconds
    return CacheOnNvme(size, read, again, is_worth_it=read < again)


def llm_cost(best: LlmCandidate, catalog: Catalog, calibration: Calibration) -> CostAnswer:
    question, order = best.question, best.order
    monthly_hours = (order.on_demand().instance_hours if order else 24.0) * DAYS_PER_MONTH
    return CostAnswer(
        machine=best.machine.name,
        usd_per_hour=best.machine.usd_per_hour,
        managed=_quotes(best, catalog),
        levers=tuple(_levers(best, calibration)),
        regions=prices_by_region(best.machine, catalog, question.residency, monthly_hours),
        usd_per_million_tokens=best.usd_per_unit,
        usd_per_day=best.usd_per_day,
        usd_per_month=best.usd_per_month,
        idle_usd_per_day=best.bill.idle_usd_per_day if best.bill else None,
        warm_usd_per_day=best.bill.warm_usd_per_day if best.bill else None,
        purchase=best.bill.purchases if best.bill else (),
        purchase_options=purchase_options(order, question.terms) if order else (),
        warnings=warnings(order, question.terms) if order else (),
    )


def daily_cost(best: LlmCandidate) -> DailyCost:
    """USD per day by volume, in thousands of answer tokens per day.

    It is the cost of a fleet if the question has requests, otherwise that of machines that are always busy.
    """
    question, hourly, price = best.question, best.machine.usd_per_hour, best.machine.price
    if best.demand is None or price is None:
        capacity = best.tokens_per_second * SECONDS_PER_DAY / THOUSAND
        return lambda volume: hourly * 24 * math.ceil(volume / capacity) if hourly is not None else None
    demand, layout = best.demand, best.layout

    def of_fleet(volume: float) -> float | None:
        traffic = traffic_of(volume * THOUSAND / question.answer_tokens, demand.traffic.shape)
        other = replace(demand, traffic=traffic)
        needed = fewest_by_formulas(other)
        if needed is None:
            return None
        fleet, _ = request_fleet(other, layout, needed, is_simulated=False)
        return Order(fleet, traffic, price, demand.pace.replica_seconds).bill(question.terms).usd_per_day

    if best.bill is None or best.tokens_per_day is None:
        return of_fleet
    return exact_at(best.tokens_per_day / THOUSAND, best.bill.usd_per_day, of_fleet)


def _quotes(best: LlmCandidate, catalog: Catalog) -> tuple[TokenQuote, ...]:
    """Every text API, the one with the same model first."""
    cost = daily_cost(best)
    found = [_quote(best, catalog, api, cost) for api in catalog.text_apis.values()]
    return tuple(sorted(found, key=lambda quote: not quote.is_same_model))


def _quote(best: LlmCandidate, catalog: Catalog, api: TextApi, cost: DailyCost) -> TokenQuote:
    question, tokens_per_day = best.question, best.tokens_per_day
    prompts = question.prompt / question.answer_tokens * api.usd_per_million_input
    usd = api.usd_per_million_output + prompts
    asked = tokens_per_day / THOUSAND if tokens_per_day else None
    crossing = break_even(cost, usd / 1e6 * THOUSAND, asked)
    is_same = api.model == question.model.id
    note = "the same model" if is_same else "a different model, shown for its price"
    wanted = question.residency or catalog.region(question.region).jurisdiction
    offered = catalog.region(api.region).jurisdiction
    is_available = wanted == offered
    if not is_available:
        note += f"; offered in {offered}, not in {wanted}"
    tokens = crossing * THOUSAND if crossing is not None else None
    return TokenQuote(api.id, api.name, usd, tokens, is_same, is_available, note)


def _levers(best: LlmCandidate, calibration: Calibration) -> list[CostLever]:
    """What each change saves that the question has not made yet."""
    question, constants, now = best.question, calibration.constants, best.sequences
    changes = [(f"{name} in fp8", serving, now) for name, serving in fp8_changes(best.serving)]
    if best.capacity > now:
        changes.append((f"a batch of {best.capacity} instead of {now}", best.serving, best.capacity))
    before = pace_of(best.serving, question.load(now), constants).replica_seconds
    return [
        CostLever(name, 1 - pace_of(serving, question.load(batch), constants).replica_seconds / before)
        for name, serving, batch in changes
    ]


def llm_plots(best: LlmCandidate, cost: CostAnswer, calibration: Calibration) -> Plots:
    """Cost per million tokens against volume, and time between tokens against the batch."""
    if best.machine.usd_per_hour is None:
        return Plots()
    asked = best.tokens_per_day / 1e6 if best.tokens_per_day else None
    centre = asked or best.tokens_per_second * SECONDS_PER_DAY / 1e6
    volumes = [centre * 10 ** (i / 10 - 1.5) for i in range(31)]
    daily = daily_cost(best)
    own = tuple((v, usd / v) for v in volumes if (usd := daily(v * 1e6 / THOUSAND)) is not None)
    quotes = [quote for quote in cost.managed if isinstance(quote, TokenQuote) and quote.is_available]
    managed = [
        Curve(q.name, tuple((v, q.usd_per_million_output_with_prompts) for v in (volumes[0], volumes[-1])))
        for q in quotes
    ]
    same = [q for q in quotes if q.is_same_model and q.break_even_tokens_per_day is not None]
    return Plots(
        cost=(Curve(f"own fleet, {best.machine.name}", own), *managed),
        break_even=tuple((q.name, (q.break_even_tokens_per_day or 0.0) / 1e6) for q in same),
        latency=_latency(best, calibration),
        slo_seconds=best.question.tbt_seconds or None,
        volume=asked,
        volume_name="million tokens per day",
        cost_name="USD per million answer tokens",
        load_name="share of the sequences that the cache can hold",
    )


def _latency(best: LlmCandidate, calibration: Calibration) -> tuple[Curve, ...]:
    points = []
    for i in range(1, 41):
        load = best.question.load(max(1, round(best.capacity * i / 40)))
        each = token_seconds(best.serving, load, calibration.constants)
        points.append((load.sequences / best.capacity, each))
    ends = (("time between tokens", 1.0), ("upper end", best.upper_end), ("lower end", 1 / best.upper_end))
    return tuple(Curve(name, tuple((at, each * factor) for at, each in points)) for name, factor in ends)
