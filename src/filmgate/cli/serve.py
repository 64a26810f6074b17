"""`filmgate serve`: the API and, by default, one embedded worker."""

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from filmgate.cli.banner import print_banner
from filmgate.cli.data_folder import settings_with
from filmgate.cli.worker import find_models
from filmgate.errors import UsageError


def run_server(  # noqa: PLR0913, PLR0917 - one argument per flag
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="Model to serve: NAME, FOLDER, HUB/ID, s3://... or NAME=LOCATION. Repeat it for more; "
            "the first is the default.  [default: admission.default_model]"
        ),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.  [default: api.host]")] = None,
    port: Annotated[
        int | None, typer.Option(help="Port to listen on, or 0 for any free port.  [default: api.port]")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder for jobs, clips and keys.  [default: the `data` setting]")
    ] = None,
    has_worker: Annotated[
        bool, typer.Option("--worker/--no-worker", help="Run a worker too, as a child process.")
    ] = True,
    is_open: Annotated[
        bool, typer.Option("--open", help="Accept requests without an API key; only on loopback.")
    ] = False,
    tls_certificate: Annotated[
        Path | None, typer.Option(help="PEM file of the certificate; enables HTTPS.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM file of the private key.")] = None,
    tls_client_ca: Annotated[
        Path | None, typer.Option(help="PEM file of the CA whose client certificates identify tenants.")
    ] = None,
) -> None:
    """Serve the API on this machine, with a queue, an encrypted store and a worker."""
    if model and not has_worker:
        raise UsageError("the models are loaded by the worker; remove --no-worker", option="--model")
    models = find_models(model or [])
    given = {
        "api.host": host,
        "api.port": port,
        "api.open": is_open or None,
        "api.tls_certificate": tls_certificate,
        "api.tls_key": tls_key,
        "api.tls_client_ca": tls_client_ca,
        "admission.default_model": next(iter(models), None),
    }
    from filmgate.server import serve

    settings = settings_with(data, given)
    if has_worker and not models:
        models = {settings.admission.default_model: settings.admission.default_model}
    serve(settings, partial(print_banner, settings, bool(models)), models, report_failure)


def report_failure(reason: str) -> None:
    """Say why the worker does not run; the API keeps running."""
    sys.stderr.write(
        f"error: the worker cannot start: {reason}\n"
        "The API keeps running and rejects new videos with 503 until a worker serves their model.\n"
    )
    sys.stderr.flush()
