"""`filmgate plan validate`: predictions against published and measured runs."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from filmgate.cli.plan import options

if TYPE_CHECKING:
    from filmgate.planner.random_plans import PlanCheck


def validate_command(
    docs: Annotated[
        Path | None, typer.Option("--docs", help="Write the tables as Markdown to this file.")
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option("--calibration", help="Write the fitted constants as JSON to this file.")
    ] = None,
    questions: Annotated[
        int, typer.Option("--questions", min=0, help="Also check this many random questions, about 1 s each.")
    ] = 0,
    is_json: options.Json = False,
) -> None:
    """Compare predictions with published and measured runs, each held out of the calibration."""
    from filmgate.catalog.loader import load_calibration, load_catalog
    from filmgate.cli.plan import inputs
    from filmgate.cli.plan.output import write
    from filmgate.planner.answer import rounded
    from filmgate.planner.random_plans import check_plans
    from filmgate.planner.report.validation import to_validation_page
    from filmgate.planner.validation import validate

    catalog = load_catalog()
    found = validate(catalog, inputs.today().isoformat())
    checked = check_plans(catalog, load_calibration(), questions) if questions else None
    if calibration:
        write(calibration, json.dumps(asdict(found.calibration), indent=1) + "\n")
    page = to_validation_page(found, checked)
    if docs:
        write(docs, page)
    if is_json:
        rows = [rounded(asdict(row)) for row in found.rows]
        document = {"rows": rows, "calibration": asdict(found.calibration)}
        typer.echo(json.dumps(document | ({"questions": asdict(checked)} if checked else {})))
    elif not docs:
        typer.echo(page)
    _fail_on(checked)


def _fail_on(checked: "PlanCheck | None") -> None:
    """Exits with 1 if a property does not hold, or if too many verdicts are late."""
    if checked is None or checked.is_good:
        return
    for problem in checked.problems:
        typer.echo(problem, err=True)
    typer.echo(
        f"late: {checked.late} of {checked.with_target}, unflagged: {checked.late_unflagged}", err=True
    )
    raise typer.Exit(1)
