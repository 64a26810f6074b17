"""`filmgate plan validate`: predictions against published and measured runs."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from filmgate.cli.options import AsJson

if TYPE_CHECKING:
    from filmgate.planner.plan_checks import PlanCheck


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
    is_json: AsJson = False,
) -> None:
    """Compare predictions with published and measured runs, each held out of the calibration."""
    from filmgate.catalog.loader import load_calibration, load_catalog
    from filmgate.cli.plan import inputs
    from filmgate.cli.plan.output import write
    from filmgate.planner.answer import rounded
    from filmgate.planner.random_llm_plans import check_llm_plans
    from filmgate.planner.random_plans import check_plans
    from filmgate.planner.report.validation import to_validation_page
    from filmgate.planner.validation import validate

    catalog = load_catalog()
    found = validate(catalog, inputs.today().isoformat())
    checked = check_plans(catalog, load_calibration(), questions) if questions else None
    llm_checked = check_llm_plans(catalog, load_calibration(), questions) if questions else None
    if calibration:
        write(calibration, json.dumps(asdict(found.calibration), indent=1) + "\n")
    page = to_validation_page(found, checked, llm_checked)
    if docs:
        write(docs, page)
    if is_json:
        rows = [rounded(asdict(row)) for row in found.rows]
        document = {"rows": rows, "calibration": asdict(found.calibration)}
        if checked and llm_checked:
            document |= {"questions": asdict(checked), "llm_questions": asdict(llm_checked)}
        typer.echo(json.dumps(document))
    elif not docs:
        typer.echo(page)
    _fail_on([check for check in (checked, llm_checked) if check is not None])


def _fail_on(checks: "list[PlanCheck]") -> None:
    """Exits with 1 if a property does not hold, or if too many verdicts are late."""
    bad = [check for check in checks if not check.is_good]
    for check in bad:
        for problem in check.problems:
            typer.echo(problem, err=True)
        typer.echo(f"late: {check.late} of {check.with_target}, unflagged: {check.late_unflagged}", err=True)
    if bad:
        raise typer.Exit(1)
