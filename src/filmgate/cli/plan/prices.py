"""`filmgate plan prices`: prints catalog prices, or fetches current ones with `--refresh`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from filmgate.cli.options import AsJson
from filmgate.cli.plan import options


def prices_command(
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Fetch prices from the AWS Price List API; needs credentials.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file that --refresh writes.  [default: prices.csv]"),
    ] = None,
    instance: Annotated[str | None, typer.Option("--instance", help="Only this instance type.")] = None,
    catalog_file: options.UserFile = None,
    price_file: options.PriceFile = None,
    is_json: AsJson = False,
) -> None:
    """Print the prices in use, or fetch current ones into a file for `--prices`."""
    from filmgate.catalog.refresh import fetch_prices, merge_prices, open_price_list, write_prices
    from filmgate.cli.plan import inputs
    from filmgate.errors import UsageError

    if output is not None and not refresh:
        raise UsageError("only --refresh writes a file; give both", option="--output")
    output = output or Path("prices.csv")
    catalog = inputs.open_catalog(catalog_file, price_file)
    names = [catalog.instance(instance).name] if instance else list(catalog.instances)
    prices = list(catalog.prices.values())
    if refresh:
        fresh = fetch_prices(open_price_list(), names, inputs.today().isoformat())
        if not fresh:
            raise UsageError("the AWS Price List API returned no prices", option="--refresh")
        prices = merge_prices(prices, fresh)
        write_prices(prices, output)
        typer.echo(f"wrote {output}: {len(fresh)} prices; use it with --prices {output}", err=True)
    shown = [price for price in prices if price.instance in set(names)]
    if is_json:
        typer.echo(json.dumps({"prices": [asdict(price) for price in shown]}))
        return
    typer.echo(f"{'instance':<18} {'region':<16} {'USD/h':>10}  {'spot USD/h':<24} as of")
    for price in shown:
        spot = f"{price.spot_min} to {price.spot_max}" if price.spot_min is not None else "-"
        typer.echo(
            f"{price.instance:<18} {price.region:<16} {price.on_demand or '-':>10}  {spot:<24} {price.as_of}"
        )
