"""`filmgate bench store`: from the last frame to a link."""

import json
import statistics
from dataclasses import asdict
from typing import Annotated
from urllib.parse import urlsplit

import typer

from filmgate.cli.bench import where
from filmgate.jobs import TenantId


def store(
    megabytes: Annotated[float, typer.Option(min=0.1, help="Size of the clip.")] = 40.0,
    seconds: Annotated[float, typer.Option(min=0.0, help="How long it takes to make.")] = 8.0,
    rounds: Annotated[int, typer.Option(min=1, help="Clips each way; the median counts.")] = 5,
    tenant: Annotated[str, typer.Option(help="Whose key and prefix are used.")] = "local",
    is_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """A clip put into the configured store while it is made, beside the same clip put afterwards."""
    from filmgate.settings import load_settings
    from filmgate.store import open_store
    from filmgate.store.bench import ClipPlan, measure_endings
    from filmgate.store.keys import open_keys

    settings = load_settings()
    opened = open_store(settings.store, settings.data, open_keys(settings.store, settings.data))
    plan = ClipPlan(int(megabytes * 1e6), seconds)
    endings = measure_endings(opened, TenantId(tenant), plan, rounds)
    if is_json:
        scheme = urlsplit(settings.store.url).scheme or "file"
        figures = {
            "plan": asdict(plan),
            **asdict(endings),
            "while_made_to_afterwards": round(endings.ratio, 4),
        }
        typer.echo(json.dumps({"bench": "store", "store": scheme} | where() | figures))
        return
    typer.echo(f"last frame to link, while made: {statistics.median(endings.while_made) * 1000:.0f} ms")
    typer.echo(f"last frame to link, afterwards: {statistics.median(endings.afterwards) * 1000:.0f} ms")
    typer.echo(f"ratio: {endings.ratio:.3f}")
