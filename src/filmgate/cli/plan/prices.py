"""`filmgate plan prices`: what the catalog holds, and `--refresh` from the AWS Price List API."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from filmgate.cli.plan import options


def prices_command(
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Ask the AWS Price List API; needs credentials.")
    ] = False,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where --refresh writes.")] = Path(
        "prices.csv"
    ),
    instance: Annotated[str | None, typer.Option("--instance", help="Only this one.")] = None,
    catalog_file: options.UserFile = None,
    price_file: options.PriceFile = None,
    is_json: options.Json = False,
) -> None:
    """Print the prices in use, or write fresh ones for `--prices FILE`."""
    from filmgate.catalog.refresh import fetch_prices, merge_prices, open_price_list, write_prices
    from filmgate.cli.plan import opening
    from filmgate.errors import UsageError

    catalog = opening.open_catalog(catalog_file, price_file)
    names = [catalog.instance(instance).name] if instance else list(catalog.instances)
    held = list(catalog.prices.values())
    if refresh:
        fresh = fetch_prices(open_price_list(), names, opening.today().isoformat())
        if not fresh:
            raise UsageError("the Price List API answered with no price at all", option="--refresh")
        held = merge_prices(held, fresh)
        write_prices(held, output)
        typer.echo(f"wrote {output}: {len(fresh)} prices; use it with --prices {output}", err=True)
    shown = [price for price in held if price.instance in set(names)]
    if is_json:
        typer.echo(json.dumps({"prices": [asdict(price) for price in shown]}))
        return
    for price in shown:
        spot = f"spot {price.spot_min} to {price.spot_max}" if price.spot_min is not None else "no spot"
        typer.echo(
            f"{price.instance:<18} {price.region:<16} {price.on_demand or '-':>10}  {spot:<24} {price.as_of}"
        )
