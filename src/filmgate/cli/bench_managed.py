"""`filmgate bench managed`: what it costs to wait for hundreds of provider jobs in one process."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from filmgate.cli.bench import where

MEBI = 2**20


def managed(
    jobs: Annotated[int, typer.Option(min=1, help="Provider jobs to wait for at once.")] = 300,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long the waiting is watched.")] = 20.0,
    is_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Memory, threads and CPU of a managed worker that waits for a provider which never hurries."""
    from filmgate.providers.managed.bench.measure import measure

    figures = measure(jobs, seconds)
    if is_json:
        typer.echo(json.dumps({"bench": "managed"} | where() | asdict(figures)))
        return
    typer.echo(
        f"{figures.jobs} jobs wait in {figures.waiting_bytes / MEBI:.0f} MiB with {figures.threads} threads "
        f"(idle {figures.idle_bytes / MEBI:.0f} MiB, peak {figures.peak_bytes / MEBI:.0f} MiB)"
    )
    typer.echo(
        f"{figures.waiting_cpu_share:.1%} of a core, {figures.polls_a_second:.1f} polls a second; "
        f"started in {figures.start_seconds:.1f} s, collected in {figures.collect_seconds:.1f} s"
    )
    typer.echo(f"provider jobs paid for: {figures.provider_jobs}")
