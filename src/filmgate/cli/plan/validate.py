"""`filmgate plan validate`: predictions against published and measured runs."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from filmgate.cli.plan import options


def validate_command(
    docs: Annotated[
        Path | None, typer.Option("--docs", help="Write the tables as Markdown to this file.")
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option("--calibration", help="Write the fitted constants as JSON to this file.")
    ] = None,
    is_json: options.Json = False,
) -> None:
    """Compare predictions with published and measured runs, each held out of the calibration."""
    from filmgate.catalog.loader import load_catalog
    from filmgate.cli.plan import inputs
    from filmgate.cli.plan.output import write
    from filmgate.planner.answer import rounded
    from filmgate.planner.report.validation import to_validation_page
    from filmgate.planner.validation import validate

    found = validate(load_catalog(), inputs.today().isoformat())
    if calibration:
        write(calibration, json.dumps(asdict(found.calibration), indent=1) + "\n")
    page = to_validation_page(found)
    if docs:
        write(docs, page)
    if is_json:
        rows = [rounded(asdict(row)) for row in found.rows]
        typer.echo(json.dumps({"rows": rows, "calibration": asdict(found.calibration)}))
    elif not docs:
        typer.echo(page)
