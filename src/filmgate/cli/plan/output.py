"""Prints an answer as JSON or tables, and writes the decision record and the page."""

import json
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table as RichTable

from filmgate.cli.plan.inputs import today
from filmgate.errors import WriteError
from filmgate.planner.answer import Answer
from filmgate.planner.report.page import to_page
from filmgate.planner.report.record import to_record
from filmgate.planner.report.tables import Table, tables


def show(answer: Answer, *, is_json: bool, adr: Path | None = None, html: Path | None = None) -> None:
    """Prints the answer to stdout, and the names of written files to stderr. Exits with 1 if it is a no."""
    if adr:
        write(adr, to_record(answer, today()))
    if html:
        write(html, to_page(answer, today()))
    if is_json:
        typer.echo(json.dumps(answer.as_json()))
    else:
        _print(answer)
    if not answer.is_possible:
        raise typer.Exit(1)


def _print(answer: Answer) -> None:
    console = Console(width=None if Console().is_terminal else 160, highlight=False, markup=False)
    console.print(answer.verdict, style="bold", soft_wrap=True)
    for table in tables(answer):
        console.print()
        console.print(_rich(table))
        if table.note:
            console.print(table.note, style="dim", soft_wrap=True)
    for title, facts in (("Assumptions", answer.assumptions), ("Sources", answer.sources)):
        if facts:
            console.print(f"\n{title}", style="bold")
        for fact in facts:
            console.print(f"- {fact}", soft_wrap=True)


def write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise WriteError(f"{path} cannot be written: {exc.strerror}") from exc
    typer.echo(f"wrote {path}", err=True)


def _rich(table: Table) -> RichTable:
    shown = RichTable(title=table.title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for name in table.header:
        shown.add_column(name, overflow="fold")
    for row in table.rows:
        shown.add_row(*row)
    return shown
