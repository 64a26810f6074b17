"""`filmgate bench service`: the load test of a server and its worker."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from filmgate.cli.options import AsJson
from filmgate.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from filmgate.load_test.mix import ClipKind
    from filmgate.load_test.server import Server


Kinds = Annotated[
    list[str] | None,
    typer.Option(
        help="Kind of clip: model=, size=, seconds=, steps=, guidance=, quality=, share=, catalog= (the "
        "model in the planner's catalog), separated by commas. Repeat it for a mix.",
        metavar="KIND",
    ),
]
KeyFiles = Annotated[
    list[Path] | None, typer.Option(help="File with an API key for --url. Repeat it for several tenants.")
]


def bench_service(  # noqa: PLR0913, PLR0917 - one argument per flag
    model: Annotated[
        list[str] | None, typer.Option(help="Model to serve: NAME or NAME=LOCATION.  [default: flipbook]")
    ] = None,
    clip: Kinds = None,
    clips: Annotated[int, typer.Option(min=2, help="Number of clips, unless --minutes is given.")] = 10,
    per_hour: Annotated[
        float | None, typer.Option(min=0.001, help="Requests per hour.  [default: all at the same time]")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(min=0.01, help="Send requests for this long, with --per-hour.")
    ] = None,
    tenants: Annotated[int, typer.Option(min=1, help="Number of tenants that send in turn.")] = 1,
    rounds: Annotated[
        int, typer.Option(min=1, help="Timed runs of denoise and decode without the service.")
    ] = 3,
    usd_per_hour: Annotated[
        float | None,
        typer.Option(min=0.0, help="Price of the machine.  [default: api.usd_per_gpu_hour]"),
    ] = None,
    url: Annotated[str | None, typer.Option(help="Test this server instead of starting one.")] = None,
    key_file: KeyFiles = None,
    out: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the result to this JSON file too.")
    ] = None,
    is_json: AsJson = False,
) -> None:
    """Run a load test: clips per hour, seconds between clips, latency and cost, measured and as planned."""
    from filmgate.catalog.loader import load_calibration
    from filmgate.cli.plan.inputs import open_catalog
    from filmgate.load_test.mix import parse_kind, plan_requests
    from filmgate.load_test.prediction import Planner
    from filmgate.load_test.report import table
    from filmgate.load_test.run import LoadTest, run_load_test
    from filmgate.pipeline.bench.provenance import provenance
    from filmgate.settings import load_settings

    require_writable(out, "--output")
    settings = load_settings()
    if url is None and tenants > 1 and settings.queue.url:
        raise UsageError(
            "queue.url is set, and the test adds no tenants to another database; use --url and several "
            "--key-file, or unset it",
            option="--tenants",
        )
    kinds = tuple(parse_kind(text) for text in clip or [""])
    test = LoadTest(
        kinds,
        plan_requests(kinds, clips, per_hour, minutes),
        _check_models(model or ["flipbook"], kinds) if url is None else {},
        tenants,
        rounds,
        (settings.api.usd_per_gpu_hour if usd_per_hour is None else usd_per_hour) or None,
        _server_elsewhere(url, key_file or [], tenants),
    )
    planner = Planner.open(kinds, open_catalog(None, None), load_calibration())
    result = {"bench": "service", **provenance(), **run_load_test(test, planner, settings.pipeline.compile)}
    if out is not None:
        out.write_text(json.dumps(result, indent=2) + "\n")
    typer.echo(json.dumps(result) if is_json else table(result))


def require_writable(path: Path | None, option: str) -> None:
    """Raises UsageError before a long run whose result could not be written."""
    if path is None:
        return
    is_new = not path.exists()
    try:
        path.open("ab").close()
    except OSError as exc:
        message = f"{path} cannot be written; give a file in a folder that exists and is writable"
        raise UsageError(message, option=option) from exc
    if is_new:
        path.unlink()


def _check_models(given: list[str], kinds: "Sequence[ClipKind]") -> dict[str, str]:
    """The locations of the models by name. Raises UsageError for a clip of a model that is not served."""
    from filmgate.cli.worker import find_models

    models = find_models(given)
    if unknown := [kind.model for kind in kinds if kind.model and kind.model not in models]:
        raise UsageError(f"model={unknown[0]} is not served; add --model {unknown[0]}", option="--clip")
    return models


def _server_elsewhere(url: str | None, key_files: "Sequence[Path]", tenants: int) -> "Server | None":
    """The server at this URL with one key per tenant; None without a URL."""
    from filmgate.client.protocol import read_key_file
    from filmgate.load_test.server import Server

    if (url is None) != (not key_files):
        raise UsageError("--url and --key-file belong together; give both or neither", option="--url")
    if url is None:
        return None
    if tenants > 1:
        raise UsageError("with --url, give --key-file once for each tenant", option="--tenants")
    return Server(url, tuple(read_key_file(file, "--key-file") for file in key_files))
