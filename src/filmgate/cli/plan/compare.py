"""`filmgate plan compare`: the same question on a few instances only."""

from typing import Annotated

import typer

from filmgate.cli.plan import options


def compare_command(  # noqa: PLR0913 - one parameter an option
    *,
    model: Annotated[str, typer.Option("--model", help="A video model or a language model.")],
    instances: Annotated[
        str, typer.Option("--instances", help="Instances, or GPUs such as H100, by commas.")
    ],
    size: options.Size = None,
    seconds: options.Seconds = None,
    frames: options.Frames = None,
    steps: options.Steps = None,
    clips_per_day: options.ClipsPerDay = None,
    slo_seconds: options.SloSeconds = None,
    precision: Annotated[str | None, typer.Option("--precision", help="Weights.")] = None,
    context: Annotated[int, typer.Option("--context", help="Tokens a sequence.")] = 8192,
    concurrency: Annotated[int, typer.Option("--concurrency", help="Sequences at once.")] = 1,
    region: options.Region = None,
    catalog_file: options.UserFile = None,
    price_file: options.PriceFile = None,
    is_json: options.Json = False,
    adr: options.Adr = None,
    html: options.Html = None,
) -> None:
    """Rank a few instances for one model."""
    from filmgate.catalog.library import load_calibration
    from filmgate.cli.plan import opening
    from filmgate.cli.plan.output import show
    from filmgate.planner.llm import plan_llm
    from filmgate.planner.llm_serving import LlmAsk
    from filmgate.planner.video import VideoAsk
    from filmgate.planner.video_answer import plan_video

    catalog = opening.open_catalog(catalog_file, price_file)
    names = opening.machine_names(instances)
    place = opening.region_or_default(region, catalog)
    if opening.is_video(model, catalog):
        found = opening.find_video_model(model, catalog)
        clip = opening.build_clip(found, size, seconds=seconds, frames=frames, steps=steps)
        weights = opening.check_precision(precision or "bf16", ("bf16", "fp8"))
        ask = VideoAsk(found, clip, place, clips_per_day, slo_seconds, precision=weights, instances=names)
        opening.check_numbers(ask)
        answer = plan_video(ask, catalog, load_calibration())
    else:
        llm = opening.find_llm(model, catalog)
        weights = opening.check_precision(precision or llm.native_precision)
        opening.check_positive(context, "--context")
        opening.check_positive(concurrency, "--concurrency")
        served = LlmAsk(llm, weights, "bf16", context, concurrency, region=place, instances=names)
        answer = plan_llm(served, catalog, load_calibration())
    show(answer, is_json=is_json, adr=adr, html=html)
