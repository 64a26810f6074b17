"""`filmgate plan llm`: a language model at this precision, context, concurrency and latency."""

from typing import Annotated

import typer

from filmgate.cli.plan import options


def plan_llm_command(  # noqa: PLR0913 - one parameter an option
    *,
    model: options.LlmName,
    precision: Annotated[
        str | None, typer.Option("--precision", help="Weights; default: as released.")
    ] = None,
    kv_precision: Annotated[str, typer.Option("--kv-precision", help="KV cache: bf16 or fp8.")] = "bf16",
    context: Annotated[int, typer.Option("--context", help="Tokens a sequence, prompt and answer.")] = 8192,
    answer_tokens: Annotated[int, typer.Option("--answer-tokens", help="Of them, the answer.")] = 256,
    concurrency: Annotated[int, typer.Option("--concurrency", help="Sequences at once.")] = 1,
    ttft_ms: Annotated[float | None, typer.Option("--ttft-ms", help="Longest time to first token.")] = None,
    tbt_ms: Annotated[float | None, typer.Option("--tbt-ms", help="Longest time between tokens.")] = None,
    residency: options.Residency = None,
    gpu: options.GpuName = None,
    region: options.Region = None,
    catalog_file: options.UserFile = None,
    price_file: options.PriceFile = None,
    is_json: options.Json = False,
    adr: options.Adr = None,
    html: options.Html = None,
) -> None:
    """Memory, latency and cost a million tokens for serving a language model."""
    from filmgate.catalog.library import load_calibration
    from filmgate.cli.plan import opening
    from filmgate.cli.plan.output import show
    from filmgate.planner.llm import plan_llm
    from filmgate.planner.llm_serving import LlmAsk

    catalog = opening.open_catalog(catalog_file, price_file)
    found = opening.find_llm(model, catalog)
    for value, option in (
        (context, "--context"),
        (answer_tokens, "--answer-tokens"),
        (concurrency, "--concurrency"),
        (ttft_ms, "--ttft-ms"),
        (tbt_ms, "--tbt-ms"),
    ):
        opening.check_positive(value, option)
    opening.check_precision(precision or found.native_precision)
    opening.check_precision(kv_precision, ("bf16", "fp8"))
    ask = LlmAsk(
        model=found,
        precision=precision or found.native_precision,
        kv_precision=kv_precision,
        context=context,
        concurrency=concurrency,
        ttft_ms=ttft_ms,
        tbt_ms=tbt_ms,
        region=opening.region_or_default(region, catalog),
        gpu=opening.gpu_or_none(gpu, catalog),
        answer_tokens=answer_tokens,
        residency=residency,
    )
    show(plan_llm(ask, catalog, load_calibration()), is_json=is_json, adr=adr, html=html)
