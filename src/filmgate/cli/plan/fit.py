"""`filmgate plan fit`: what fits on what I have."""

from typing import Annotated

import typer

from filmgate.cli.plan import options


def fit_command(  # noqa: PLR0913 - one parameter an option
    *,
    instance: Annotated[str | None, typer.Option("--instance", help="An instance, e.g. g7e.2xlarge.")] = None,
    gpu: options.GpuName = None,
    seconds: options.Seconds = None,
    frames: options.Frames = None,
    region: options.Region = None,
    catalog_file: options.UserFile = None,
    price_file: options.PriceFile = None,
    is_json: options.Json = False,
    adr: options.Adr = None,
    html: options.Html = None,
) -> None:
    """Every model of the catalog on one machine: how fast, or by how much it misses."""
    from filmgate.catalog.library import load_calibration
    from filmgate.cli.plan import opening
    from filmgate.cli.plan.output import show
    from filmgate.errors import UsageError
    from filmgate.planner.fit import Length, plan_fit

    if (instance is None) == (gpu is None):
        raise UsageError("give --instance or --gpu", option="--instance")
    opening.check_positive(seconds, "--seconds")
    opening.check_positive(frames, "--frames")
    catalog = opening.open_catalog(catalog_file, price_file)
    answer = plan_fit(
        catalog,
        load_calibration(),
        opening.region_or_default(region, catalog),
        gpu=opening.gpu_or_none(gpu, catalog),
        instance=catalog.instance(instance).name if instance else None,
        length=Length(seconds, frames),
    )
    show(answer, is_json=is_json, adr=adr, html=html)
