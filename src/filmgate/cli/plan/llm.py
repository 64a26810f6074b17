"""`filmgate plan llm`: a language model at this precision, context, concurrency and latency."""

from typing import TYPE_CHECKING, Any

from filmgate.cli.plan import options
from filmgate.cli.plan.question import Ground
from filmgate.planner.fleet.traffic import Shape

if TYPE_CHECKING:
    from filmgate.planner.answer import Answer
    from filmgate.planner.llm.serving import LlmAsk

NO_CLIP = {
    "frames": "a language model makes no frames; give --context and --answer-tokens",
    "seconds": "a language model makes no clip; give --context and --answer-tokens",
}


def ask_llm(  # noqa: PLR0913 - one parameter an option
    ground: Ground,
    *,
    model: options.LlmName,
    precision: options.Precision = None,
    kv_precision: options.KvPrecision = "bf16",
    context: options.Context = 8192,
    answer_tokens: options.AnswerTokens = 256,
    concurrency: options.Concurrency = None,
    requests_per_day: options.RequestsPerDay = None,
    requests_per_second: options.RequestsPerSecond = None,
    traffic: options.TrafficShape = Shape.STEADY,
    ttft_ms: options.TtftMs = None,
    tbt_ms: options.TbtMs = None,
    residency: options.Residency = None,
    safety_factor: options.SafetyFactor = 1.2,
    gpu: options.GpuName = None,
) -> "LlmAsk":
    """The question these options put; raises UsageError for one that cannot be put."""
    from filmgate.cli.plan import opening
    from filmgate.planner.llm.arrivals import MOST_SEQUENCES
    from filmgate.planner.llm.serving import LlmAsk

    found = opening.find_llm(model, ground.catalog)
    for value, option in (
        (context, "--context"),
        (answer_tokens, "--answer-tokens"),
        (concurrency, "--concurrency"),
        (requests_per_day, "--requests-per-day"),
        (requests_per_second, "--requests-per-second"),
        (ttft_ms, "--ttft-ms"),
        (tbt_ms, "--tbt-ms"),
        (safety_factor, "--safety-factor"),
    ):
        opening.check_positive(value, option)
    volume = opening.requests_a_day(requests_per_day, requests_per_second)
    return LlmAsk(
        model=found,
        precision=opening.check_precision(precision or found.native_precision),
        kv_precision=opening.check_precision(kv_precision, ("bf16", "fp8"), option="--kv-precision"),
        context=context,
        concurrency=concurrency or (1 if volume is None else MOST_SEQUENCES),
        ttft_ms=ttft_ms,
        tbt_ms=tbt_ms,
        region=ground.region,
        gpu=opening.gpu_or_none(gpu, ground.catalog),
        safety_factor=safety_factor,
        answer_tokens=answer_tokens,
        residency=residency,
        requests_per_day=volume,
        shape=traffic,
    )


def answer_llm(ground: Ground, **asked: Any) -> "Answer":
    """Memory, latency and cost a million tokens for serving a language model."""
    from filmgate.planner.llm.answer import plan_llm

    return plan_llm(ask_llm(ground, **asked), ground.catalog, ground.calibration)
