"""`filmgate bench routing`: what a choice of route costs, and a spill of many waiting jobs."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from filmgate.cli.bench import where


def routing(
    database_url: Annotated[
        str | None, typer.Option(help="A PostgreSQL server that lets us make databases; SQLite if left out.")
    ] = None,
    waiting: Annotated[int, typer.Option(min=1, help="Jobs that wait when the spill looks.")] = 10_000,
    choices: Annotated[int, typer.Option(min=200, help="Timed choices of each kind.")] = 20_000,
    is_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Choices at the gate, and one look of the spill at a long queue."""
    from filmgate.scheduling.bench_routing import measure_choices, measure_spill

    choice, spill = measure_choices(choices), measure_spill(database_url, waiting)
    if is_json:
        engine = "postgresql" if database_url else "sqlite"
        results = {"choice": asdict(choice), "spill": asdict(spill)}
        typer.echo(json.dumps({"bench": "routing", "database": engine} | where() | results))
        return
    typer.echo(f"a choice: {choice.stays_us} us at home, {choice.leaves_us} us away")
    typer.echo(f"a spill: {spill.left:,} of {spill.waiting:,} waiting jobs in {spill.seconds} s")
