"""`filmgate bench models`: a pull in parallel ranges against one plain stream from the same server."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from filmgate.cli.bench import where


def models(
    megabytes: Annotated[int, typer.Option(min=1, help="Size of the weights.")] = 64,
    rate: Annotated[float, typer.Option(min=0.1, help="Megabytes a second of one connection.")] = 8.0,
    connections: Annotated[int, typer.Option(min=1, help="Ranges at once.")] = 16,
    rounds: Annotated[int, typer.Option(min=1, help="Timed runs of each; the median counts.")] = 3,
    is_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Pull a model and download it plainly, in turns, from a server that limits each connection."""
    from filmgate.models.weights.bench import measure_pull

    cost = measure_pull(megabytes << 20, rate * 2**20, connections, rounds)
    if is_json:
        about = {"bench": "models", "bytes_a_second_a_connection": int(rate * 2**20), "rounds": rounds}
        ratio = {"stream_to_pull": cost.speedup}
        typer.echo(json.dumps(about | where() | {"results": asdict(cost), "ratios": ratio}))
        return
    typer.echo(f"one stream {cost.stream_seconds:.2f} s, pull {cost.pull_seconds:.2f} s: {cost.speedup} x")
