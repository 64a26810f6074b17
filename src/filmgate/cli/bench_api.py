"""`filmgate bench api`: creates a second, memory, watchers."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from filmgate.cli.bench import where


def api(
    creates: Annotated[int, typer.Option(min=50, help="Creates a turn.")] = 1500,
    rounds: Annotated[int, typer.Option(min=1, help="Turns; the median counts.")] = 5,
    soak: Annotated[int, typer.Option(min=100, help="Creates for the memory figure.")] = 100_000,
    watchers: Annotated[int, typer.Option(min=1, help="Event streams open at once.")] = 500,
    is_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Our create beside a bare endpoint of the same framework that does one durable INSERT."""
    from filmgate.api.bench.measure import Plan, measure

    figures = measure(Plan(creates=creates, rounds=rounds, soak=soak, watchers=watchers))
    if is_json:
        typer.echo(json.dumps({"bench": "api"} | where() | asdict(figures)))
        return
    speed, watching, memory = figures.throughput, figures.watching, figures.memory
    typer.echo(f"creates a second: {speed.ours:.0f}, bare {speed.bare:.0f}, ratio {speed.ours_to_bare:.2f}")
    typer.echo(
        f"CPU time a create: {speed.ours_cpu_ms:.2f} ms, bare {speed.bare_cpu_ms:.2f} ms, "
        f"ratio {speed.bare_to_ours_cpu:.2f}"
    )
    typer.echo(f"with {watching.watchers} watchers: {watching.watched_to_alone:.2f} of the rate without")
    typer.echo(
        f"memory over {memory.creates:,} creates: {memory.early_bytes / 2**20:.0f} MiB after a tenth, "
        f"{memory.late_bytes / 2**20:.0f} MiB at the end ({memory.late_to_early:.2f})"
    )
