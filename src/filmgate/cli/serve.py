"""`filmgate serve`: the API and, by default, one embedded worker."""

import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from filmgate.cli.data_folder import settings_with
from filmgate.cli.worker import find_models
from filmgate.errors import UsageError

if TYPE_CHECKING:
    from filmgate.settings import Settings

_PROMPT = "a red ball bounces on the grass"


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


def print_banner(settings: "Settings", has_worker: bool, port: int) -> None:  # noqa: FBT001 - for partial
    """Print the address, the key file and two examples on stderr."""
    from filmgate.tenants.local import KEY_FILE

    scheme = "https" if settings.api.tls_certificate else "http"
    host = "127.0.0.1" if settings.api.host in ("0.0.0.0", "::") else settings.api.host  # noqa: S104
    address = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
    key_file, model = (settings.data / KEY_FILE).resolve(), settings.admission.default_model
    lines = [
        f"Filmgate is listening on {address}",
        f"Open it in a browser for the console; the API reference is at {address}/docs",
    ]
    if settings.api.open:
        lines.append("Requests from this machine need no API key.")
    if has_worker:
        lines.append(f"The worker is loading {model}. It logs `ready` when it can render.")
    if key_file.exists():
        lines.append(f"The API key of the tenant `local` is in {key_file}")
        lines.append(_examples(address, None if settings.api.open else key_file, model))
    elif not settings.api.open:
        lines.append(
            "Requests need the API key of a tenant: `filmgate tenant list` shows the tenants, and "
            "`filmgate tenant rotate NAME` creates a new key."
        )
    sys.stderr.write("\n".join(lines) + "\n")
    sys.stderr.flush()


def _examples(address: str, key_file: Path | None, model: str) -> str:
    """A request with curl and with Python. Without a key file, the server needs no key."""
    header, key = "", '"open"'
    if key_file is not None:
        header = f' -H "Authorization: Bearer $(cat {shlex.quote(str(key_file))})"'
        key = f"open({str(key_file)!r}).read().strip()"
    return f"""
Try it with curl:

curl {address}/v1/videos{header} -F model={shlex.quote(model)} -F prompt="{_PROMPT}"

or with Python (pip install openai):

import openai
client = openai.OpenAI(base_url={address + "/v1"!r}, api_key={key})
video = client.videos.create_and_poll(model={model!r}, prompt="{_PROMPT}")
client.videos.download_content(video.id).write_to_file("clip.mp4")
"""
