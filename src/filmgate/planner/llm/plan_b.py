"""Plan B of a served model: another machine, another region, a smaller cache, or the provider."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from filmgate.catalog.calibrations import Calibration
from filmgate.catalog.catalog import Catalog
from filmgate.planner.fleet.answer import Alternative, CostAnswer, TokenQuote
from filmgate.planner.fleet.money import DAYS_PER_MONTH
from filmgate.planner.llm.serving import LlmCandidate, evaluate_llm, simulated_llm
from filmgate.planner.machines import prices_elsewhere
from filmgate.planner.plan_b import another_machine, another_region, missing
from filmgate.planner.report.numbers import usd


def llm_plan_b(
    candidates: Sequence[LlmCandidate],
    cost: CostAnswer,
    catalog: Catalog,
    calibration: Calibration,
) -> Iterator[Alternative]:
    """What to do when the decision cannot be bought; times are seconds between tokens."""
    best = candidates[0]
    machine, region = best.machine, best.question.region
    others = (one for one in candidates if one.machine.gpu.name != machine.gpu.name)
    simulated = (simulated_llm(other, calibration) for other in others)
    yield another_machine(best, (one for one in simulated if isinstance(one, LlmCandidate)))
    if machine.instance is not None and machine.price is not None:
        found = [(best.at(price), price.region) for price in prices_elsewhere(machine, region, catalog)]
        yield another_region(found, catalog.region(region).jurisdiction, "weights")
    yield from _smaller_cache(best, calibration)
    yield _provider(cost, best)


def _smaller_cache(best: LlmCandidate, calibration: Calibration) -> Iterator[Alternative]:
    if best.question.kv_precision != "bf16":
        return
    smaller = replace(best.question, kv_precision="fp8")
    found = evaluate_llm(smaller, best.machine, calibration)
    changed = simulated_llm(found, calibration) if isinstance(found, LlmCandidate) else found
    if isinstance(changed, LlmCandidate):
        note = "lower precision of attention; compare answers first"
        yield Alternative("KV cache in fp8", best.machine.name, changed.seconds, changed.usd_per_month, note)


def _provider(cost: CostAnswer, best: LlmCandidate) -> Alternative:
    quotes = [q for q in cost.managed if isinstance(q, TokenQuote) and q.is_available]
    quote = next((q for q in quotes if q.is_same_model), None) or min(
        quotes, key=lambda q: q.usd_per_million_output_with_prompts, default=None
    )
    if quote is None:
        return missing("the provider", "no API of the catalog is in the jurisdiction")
    tokens = best.tokens_per_day
    price = quote.usd_per_million_output_with_prompts
    monthly = price * tokens / 1e6 * DAYS_PER_MONTH if tokens else None
    note = f"{usd(price)} per million answer tokens with their prompts; {quote.note}"
    return Alternative("the provider", quote.name, None, monthly, note)
