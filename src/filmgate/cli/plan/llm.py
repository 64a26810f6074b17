"""`filmgate plan llm`: machines, fleet and cost for serving a language model."""

from typing import TYPE_CHECKING, Any

from filmgate.cli.plan import options
from filmgate.cli.plan.command import Facts

if TYPE_CHECKING:
    from filmgate.planner.answer import Answer
    from filmgate.planner.llm.question import LlmQuestion


def llm_question(  # noqa: PLR0913 - one parameter per option
    facts: Facts,
    *,
    model: options.LlmName,
    precision: options.Precision = None,
    kv_precision: options.KvPrecision = "bf16",
    context: options.Context = 8192,
    answer_tokens: options.AnswerTokens = 256,
    concurrency: options.Concurrency = None,
    requests_per_day: options.RequestsPerDay = None,
    requests_per_second: options.RequestsPerSecond = None,
    traffic: options.Traffic = None,
    ttft_ms: options.TtftMs = None,
    tbt_ms: options.TbtMs = None,
    spare_machines: options.SpareMachines = 1,
    residency: options.Residency = None,
    cached_tokens: options.CachedTokens = 0,
    safety_factor: options.SafetyFactor = 1.2,
    budget_margin: options.BudgetMargin = 1.0,
    commit_discount: options.Discount = None,
    commit_years: options.CommitYears = 1,
    gpu: options.GpuName = None,
) -> "LlmQuestion":
    """The question that these options ask. Raises UsageError."""
    from filmgate.cli.plan import inputs
    from filmgate.planner.llm.arrivals import MAX_SEQUENCES
    from filmgate.planner.llm.question import LlmQuestion

    found = inputs.find_llm(model, facts.catalog)
    inputs.check_positive(context=context, answer_tokens=answer_tokens, concurrency=concurrency)
    inputs.check_positive(ttft_ms=ttft_ms, tbt_ms=tbt_ms)
    inputs.check_factors(safety_factor=safety_factor, budget_margin=budget_margin)
    inputs.check_tokens(context, answer_tokens, cached_tokens)
    arrivals = inputs.request_traffic(requests_per_day, requests_per_second, traffic)
    return LlmQuestion(
        model=found,
        precision=inputs.check_precision(precision or found.native_precision),
        kv_precision=inputs.check_precision(kv_precision, ("bf16", "fp8"), option="--kv-precision"),
        context=context,
        concurrency=concurrency or (1 if arrivals is None else MAX_SEQUENCES),
        ttft_ms=ttft_ms,
        tbt_ms=tbt_ms,
        region=facts.region,
        gpu=facts.catalog.gpu(gpu) if gpu else None,
        safety_factor=safety_factor,
        answer_tokens=answer_tokens,
        cached_tokens=cached_tokens,
        budget_margin=budget_margin,
        terms=inputs.to_terms(commit_discount, commit_years),
        residency=inputs.parse_residency(residency, facts.catalog),
        traffic=arrivals,
        spare_machines=spare_machines,
    )


def answer_llm(facts: Facts, **given: Any) -> "Answer":
    """Plan hardware for serving a language model: memory, latency, fleet and cost."""
    from filmgate.planner.llm.answer import plan_llm

    return plan_llm(llm_question(facts, **given), facts.catalog, facts.calibration)
