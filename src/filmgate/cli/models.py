"""`filmgate models`: model weights in S3 and the node's cache of them."""

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from filmgate.errors import ModelError, UsageError

if TYPE_CHECKING:
    from filmgate.models.weights.cache import ModelCache
    from filmgate.models.weights.fetch import ReportProgress

models = typer.Typer(help="Model weights in S3 and this node's cache of them.", no_args_is_help=True)

Url = Annotated[str, typer.Argument(help="s3://BUCKET/models/NAME/vN/", metavar="URL")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
_PROGRESS_SECONDS = 2.0


@models.command("push")
def push(
    folder: Annotated[Path, typer.Argument(help="A diffusers folder.")], url: Url, is_json: AsJson = False
) -> None:
    """Upload a folder as a version: first the files, last the manifest with their SHA-256."""
    from filmgate.models.weights.location import parse_location
    from filmgate.models.weights.push import push_folder
    from filmgate.models.weights.remote import open_remote
    from filmgate.settings import load_settings

    remote = open_remote(parse_location(url), load_settings().models)
    pushed = push_folder(folder, remote, lambda path: typer.echo(path, err=True))
    if is_json:
        typer.echo(json.dumps(asdict(pushed)))
    elif pushed.is_already_published:
        typer.echo(f"{pushed.url} already exists with the same files")
    else:
        typer.echo(
            f"{pushed.url}: {pushed.files} files, {_gib(pushed.size_bytes)}, {pushed.uploaded_files} uploaded"
        )


@models.command("pull")
def pull(url: Url, is_json: AsJson = False) -> None:
    """Download a version to the cache and print its folder. Files in the cache are not downloaded again."""
    from filmgate.models.weights.location import parse_location

    location = parse_location(url)
    acquired = _open().acquire(location, pull_progress())
    acquired.lock.close()
    found = {"url": location.url, "folder": str(acquired.folder)}
    typer.echo(json.dumps(found) if is_json else acquired.folder)


@models.command("list")
def list_models(is_json: AsJson = False) -> None:
    """List the models in the cache, least recently used first."""
    cached = _open().list_models()
    if is_json:
        found = [asdict(model) | {"folder": str(model.folder)} for model in cached]
        typer.echo(json.dumps({"models": found}))
        return
    for model in cached:
        state = "in use" if model.is_in_use else "idle" if model.is_whole else "incomplete"
        used = time.strftime("%Y-%m-%d %H:%M", time.gmtime(model.used_at))
        typer.echo(f"{_gib(model.size_bytes):>10}  {state:<10}  {used}  {model.url}")


@models.command("verify")
def verify(
    url: Annotated[str | None, typer.Argument(help="All models if not given.", metavar="URL")] = None,
    is_json: AsJson = False,
) -> None:
    """Read every byte and compare digests. The next pull downloads damaged files again."""
    from filmgate.models.weights.location import parse_location

    cache = _open()
    urls = [url] if url else [model.url for model in cache.list_models() if model.is_whole]
    results = [cache.verify(parse_location(each)) for each in urls]
    if is_json:
        typer.echo(json.dumps({"models": [asdict(result) for result in results]}))
    else:
        for result in results:
            typer.echo(f"{'damaged' if result.damaged else 'intact':<8} {result.url}")
    damaged = [result for result in results if result.damaged]
    if damaged:
        first = damaged[0]
        remedy = "pull it again" if first.is_withdrawn else "stop the processes that use it and verify again"
        raise ModelError(f"{first.url}: {', '.join(first.damaged)} damaged; {remedy}")


@models.command("evict")
def evict(
    urls: Annotated[list[str] | None, typer.Argument(help="Models to delete.", metavar="[URL]...")] = None,
    to_bytes: Annotated[
        int | None,
        typer.Option(
            "--to", min=0, help="Delete the least recently used until at most this many bytes remain."
        ),
    ] = None,
    is_json: AsJson = False,
) -> None:
    """Delete models from the cache. A model in use is kept."""
    from filmgate.models.weights.location import parse_location

    cache = _open()
    if bool(urls) == (to_bytes is not None):
        raise UsageError("give either URLs or --to BYTES", option="URL")
    if to_bytes is not None:
        evicted, kept = cache.shrink(to_bytes), []
    else:
        locations = [parse_location(url) for url in urls or ()]
        results = {location.url: cache.evict(location) for location in locations}
        evicted = [url for url, is_evicted in results.items() if is_evicted]
        kept = [url for url, is_evicted in results.items() if not is_evicted]
    typer.echo(json.dumps({"evicted": evicted, "kept": kept}) if is_json else "\n".join(evicted))
    if kept:
        raise ModelError(f"not evicted, in use or not in the cache: {', '.join(kept)}")


def pull_progress() -> "ReportProgress":
    """Prints a line on stderr every two seconds of a pull."""
    printed_at = time.monotonic()

    def report(done_bytes: int, total_bytes: int) -> None:
        nonlocal printed_at
        if time.monotonic() - printed_at >= _PROGRESS_SECONDS:
            printed_at = time.monotonic()
            typer.echo(f"pulled {_gib(done_bytes)} of {_gib(total_bytes)}", err=True)

    return report


def _open() -> "ModelCache":
    from filmgate.models.weights import open_cache
    from filmgate.settings import load_settings

    settings = load_settings()
    return open_cache(settings.models, settings.data)


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.2f} GiB"
