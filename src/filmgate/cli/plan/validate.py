"""`filmgate plan validate`: predictions against published and measured runs."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from filmgate.cli.options import AsJson


def validate_command(
    calibration: Annotated[
        Path | None, typer.Option("--calibration", help="Write the fitted constants as JSON to this file.")
    ] = None,
    is_json: AsJson = False,
) -> None:
    """Compare predictions with published and measured runs, each held out of the calibration.

    Prints Markdown tables.
    """
    from filmgate.catalog.loader import load_catalog
    from filmgate.cli.plan import inputs
    from filmgate.cli.plan.output import write
    from filmgate.planner.answer import rounded
    from filmgate.planner.validation.page import to_validation_page
    from filmgate.planner.validation.validate import validate

    found = validate(load_catalog(), inputs.today().isoformat())
    if calibration:
        write(calibration, json.dumps(asdict(found.calibration), indent=1) + "\n")
    if is_json:
        rows = [rounded(asdict(row)) for row in found.rows]
        typer.echo(json.dumps({"rows": rows, "calibration": asdict(found.calibration)}))
    else:
        typer.echo(to_validation_page(found))
