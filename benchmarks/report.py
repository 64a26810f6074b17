"""The command line and the report of every benchmark."""

import json
import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from filmgate.cli import run_command
from filmgate.pipeline.bench.provenance import provenance

Figures = Mapping[str, Any]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON line instead of indented JSON.")]


def make_app(main: Callable[..., None]) -> typer.Typer:
    """A command line with one command, named as it is run."""
    spec = sys.modules[main.__module__].__spec__
    name = f"python -m {spec.name if spec is not None else main.__module__}"
    app = typer.Typer(name=name, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(main)
    return app


def run(main: Callable[..., None]) -> None:
    """Run a benchmark with the exit codes and error messages of `filmgate`."""
    run_command(make_app(main))


def make_report(name: str, settings: Figures, results: Figures, ratios: Figures) -> dict[str, Any]:
    """A report: where and how it was measured, the values, and their ratios to a baseline of the same run."""
    about = {"bench": name, **provenance(), "settings": dict(settings)}
    return about | {"results": dict(results), "ratios": dict(ratios)}


def print_report(name: str, settings: Figures, results: Figures, ratios: Figures, *, is_json: bool) -> None:
    """Print a report as one JSON line, or indented."""
    report = make_report(name, settings, results, ratios)
    typer.echo(json.dumps(report, indent=None if is_json else 2))
