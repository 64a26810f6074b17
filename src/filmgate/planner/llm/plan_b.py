"""Plan B of a served model: another machine, another region, a smaller cache, or the provider."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from filmgate.catalog.calibrations import Calibration
from filmgate.catalog.catalog import Catalog
from filmgate.planner.fleet.answer import Alternative, CostAnswer, TokenQuote
from filmgate.planner.fleet.money import DAYS_PER_MONTH
from filmgate.planner.llm.serving import LlmCandidate, evaluate_llm, simulated_llm
from filmgate.planner.machines import prices_elsewhere
from filmgate.planner.report.numbers import counted


def llm_plan_b(
    candidates: Sequence[LlmCandidate],
    cost: CostAnswer,
    catalog: Catalog,
    calibration: Calibration,
) -> tuple[Alternative, ...]:
    """What to do when the decision cannot be bought; times are seconds between tokens."""
    best = candidates[0]
    found = [_second(candidates, calibration), *_other_region(best, catalog)]
    found += _smaller_cache(best, calibration)
    return (*found, _provider(cost, best))


def _monthly(candidate: LlmCandidate) -> float | None:
    return candidate.usd_per_day * DAYS_PER_MONTH if candidate.usd_per_day is not None else None


def _second(candidates: Sequence[LlmCandidate], calibration: Calibration) -> Alternative:
    best = candidates[0].machine
    others = (
        simulated_llm(other, calibration) for other in candidates if other.machine.gpu.name != best.gpu.name
    )
    other = next((one for one in others if one is not None), None)
    if other is None:
        return Alternative("another machine", "none", None, None, f"only {best.gpu.name} meets the question")
    note = counted(other.fleet.instances if other.fleet else 1, "machine")
    return Alternative("another machine", other.machine.name, other.between_tokens, _monthly(other), note)


def _other_region(best: LlmCandidate, catalog: Catalog) -> Iterator[Alternative]:
    """The cheapest other region of the same jurisdiction that has the machine."""
    hourly = best.machine.usd_per_hour
    if best.machine.instance is None or hourly is None:
        return
    law = catalog.region(best.question.region).jurisdiction
    prices = prices_elsewhere(best.machine, best.question.region, catalog)
    if not prices:
        note = f"no other region in {law} has {best.machine.name} in the catalog"
        yield Alternative("another region", "none", None, None, note)
        return
    price = min(prices, key=lambda price: price.on_demand or 0.0)
    usd = _monthly(best)
    there = usd * (price.on_demand or 0.0) / hourly if usd is not None else None
    what = f"{best.machine.name} in {price.region}"
    yield Alternative(
        "another region", what, best.between_tokens, there, f"also in {law}; weights move there"
    )


def _smaller_cache(best: LlmCandidate, calibration: Calibration) -> Iterator[Alternative]:
    if best.question.kv_precision != "bf16":
        return
    smaller = replace(best.question, kv_precision="fp8")
    found = evaluate_llm(smaller, best.machine, calibration)
    changed = simulated_llm(found, calibration) if isinstance(found, LlmCandidate) else None
    if changed is not None:
        note = "lower precision of attention; compare answers first"
        yield Alternative(
            "KV cache in fp8", best.machine.name, changed.between_tokens, _monthly(changed), note
        )


def _provider(cost: CostAnswer, best: LlmCandidate) -> Alternative:
    quotes = [q for q in cost.managed if isinstance(q, TokenQuote) and q.is_available]
    quote = next((q for q in quotes if q.is_same_model), None) or min(
        quotes, key=lambda q: q.usd_per_million_output_with_prompts, default=None
    )
    if quote is None:
        return Alternative("the provider", "none", None, None, "no API of the catalog is in the jurisdiction")
    tokens = best.tokens_per_day
    usd = quote.usd_per_million_output_with_prompts
    monthly = usd * tokens / 1e6 * DAYS_PER_MONTH if tokens else None
    note = f"${usd:.2f} per million answer tokens with their prompts; {quote.note}"
    return Alternative("the provider", quote.name, None, monthly, note)
