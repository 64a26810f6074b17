"""`filmgate bench queue`: what a claim costs at a short and at a long backlog."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from filmgate.cli.bench import where


def queue(
    database_url: Annotated[
        str | None, typer.Option(help="A PostgreSQL server that lets us make databases; SQLite if left out.")
    ] = None,
    short: Annotated[int, typer.Option(min=1, help="Jobs waiting in the short queue.")] = 100,
    long: Annotated[int, typer.Option(min=1, help="Jobs waiting in the long queue.")] = 100_000,
    claims: Annotated[int, typer.Option(min=100, help="Timed claims on each.")] = 2000,
    is_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Claims on a short and a long queue, in turns: the cost must not grow with the backlog."""
    from filmgate.scheduling.bench import measure_claims

    costs = measure_claims(database_url, (short, long), claims)
    ratios = {
        "p99": round(costs[1].p99_ms / costs[0].p99_ms, 3),
        "median": round(costs[1].median_ms / costs[0].median_ms, 3),
    }
    if is_json:
        engine = "postgresql" if database_url else "sqlite"
        results = {"results": [asdict(cost) for cost in costs], "long_to_short": ratios}
        typer.echo(json.dumps({"bench": "queue", "database": engine, "claims": claims} | where() | results))
        return
    for cost in costs:
        typer.echo(f"{cost.waiting:>9,} waiting   median {cost.median_ms:.2f} ms   p99 {cost.p99_ms:.2f} ms")
    typer.echo(f"long to short: p99 {ratios['p99']}, median {ratios['median']}")
