"""`filmgate plan rightsize`: from a week of GPU metrics, too big, too small, or fine."""

from pathlib import Path
from typing import Annotated

import typer

from filmgate.cli.plan import options


def rightsize_command(  # noqa: PLR0913 - one parameter an option
    *,
    utilisation: Annotated[
        Path, typer.Option("--utilisation", help="CSV: gpu_util, memory_used_mib, or DCGM names.")
    ],
    instance: Annotated[str | None, typer.Option("--instance", help="What runs now.")] = None,
    gpu: options.GpuName = None,
    region: options.Region = None,
    catalog_file: options.UserFile = None,
    price_file: options.PriceFile = None,
    is_json: options.Json = False,
    adr: options.Adr = None,
    html: options.Html = None,
) -> None:
    """Judge a machine by what it did."""
    from filmgate.catalog.utilisation import read_utilisation
    from filmgate.cli.plan import opening
    from filmgate.cli.plan.output import show
    from filmgate.errors import UsageError
    from filmgate.planner.rightsize import plan_rightsize

    if (instance is None) == (gpu is None):
        raise UsageError("give --instance or --gpu: what do the metrics come from?", option="--instance")
    catalog = opening.open_catalog(catalog_file, price_file)
    answer = plan_rightsize(
        read_utilisation(utilisation),
        catalog,
        opening.region_or_default(region, catalog),
        gpu=opening.gpu_or_none(gpu, catalog),
        instance=catalog.instance(instance).name if instance else None,
    )
    show(answer, is_json=is_json, adr=adr, html=html)
