"""`filmgate plan validate`: the planner against every run, each left out of its calibration."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from filmgate.cli.plan import options


def validate_command(
    docs: Annotated[Path | None, typer.Option("--docs", help="Write the table as Markdown.")] = None,
    calibration: Annotated[
        Path | None, typer.Option("--calibration", help="Write the constants as JSON.")
    ] = None,
    is_json: options.Json = False,
) -> None:
    """Predicted against published, row by row."""
    from filmgate.catalog.loader import load_catalog
    from filmgate.cli.plan import opening
    from filmgate.cli.plan.output import write
    from filmgate.planner.answer import tidy
    from filmgate.planner.report.validation import to_proof
    from filmgate.planner.validation import validate

    found = validate(load_catalog(), opening.today().isoformat())
    if calibration:
        write(calibration, json.dumps(asdict(found.calibration), indent=1) + "\n")
    text = to_proof(found)
    if docs:
        write(docs, text)
    if is_json:
        rows = [tidy(asdict(row)) for row in found.rows]
        typer.echo(json.dumps({"rows": rows, "calibration": asdict(found.calibration)}))
    elif not docs:
        typer.echo(text)
