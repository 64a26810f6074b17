"""`filmgate models`: weights in S3, and the cache of them on this node."""

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from filmgate.errors import ModelError, UsageError

if TYPE_CHECKING:
    from filmgate.models.weights.cache import Holding, ModelCache
    from filmgate.models.weights.fetch import Report

models = typer.Typer(help="Model weights in S3 and the cache of them on this node.", no_args_is_help=True)

Url = Annotated[str, typer.Argument(help="s3://BUCKET/models/NAME/vN/", metavar="URL")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
_REPORT_SECONDS = 2.0


@models.command("push")
def push(
    folder: Annotated[Path, typer.Argument(help="A diffusers folder.")], url: Url, is_json: AsJson = False
) -> None:
    """Upload a folder as a version: files first, the manifest with their SHA-256 last."""
    from filmgate.models.weights.location import parse_location
    from filmgate.models.weights.push import push_folder
    from filmgate.models.weights.remote import open_remote
    from filmgate.settings import load_settings

    remote = open_remote(parse_location(url), load_settings().models)
    pushed = push_folder(folder, remote, lambda path: typer.echo(path, err=True))
    if is_json:
        typer.echo(json.dumps(asdict(pushed)))
    elif pushed.was_there:
        typer.echo(f"{pushed.url} is there already, with the same files")
    else:
        typer.echo(
            f"{pushed.url}: {pushed.files} files, {_gib(pushed.size_bytes)}, {pushed.uploaded_files} uploaded"
        )


@models.command("pull")
def pull(url: Url, is_json: AsJson = False) -> None:
    """Bring a version into the cache and print its folder; what is there already is not fetched again."""
    from filmgate.models.weights.location import parse_location

    location = parse_location(url)
    taken = _open().take(location, tell_pulled())
    taken.lock.close()
    typer.echo(json.dumps({"url": location.url, "folder": str(taken.folder)}) if is_json else taken.folder)


@models.command("list")
def list_models(is_json: AsJson = False) -> None:
    """What is in the cache, the least recently used first."""
    holdings = _open().holdings()
    if is_json:
        typer.echo(json.dumps({"models": [_as_dict(holding) for holding in holdings]}))
        return
    for holding in holdings:
        state = "in use" if holding.is_in_use else "idle" if holding.is_whole else "incomplete"
        used = time.strftime("%Y-%m-%d %H:%M", time.gmtime(holding.used_at))
        typer.echo(f"{_gib(holding.size_bytes):>10}  {state:<10}  {used}  {holding.url}")


@models.command("verify")
def verify(
    url: Annotated[str | None, typer.Argument(help="All of them if left out.", metavar="URL")] = None,
    is_json: AsJson = False,
) -> None:
    """Read every byte and compare digests; damaged files are withdrawn and the next pull mends them."""
    from filmgate.models.weights.location import parse_location

    cache = _open()
    urls = [url] if url else [holding.url for holding in cache.holdings() if holding.is_whole]
    inspections = [cache.verify(parse_location(each)) for each in urls]
    if is_json:
        typer.echo(json.dumps({"models": [asdict(inspection) for inspection in inspections]}))
    for inspection in inspections:
        if not is_json:
            typer.echo(f"{'damaged' if inspection.damaged else 'sound':<8} {inspection.url}")
    damaged = [inspection for inspection in inspections if inspection.damaged]
    if damaged:
        first = damaged[0]
        remedy = "pull it again" if first.is_withdrawn else "stop what uses it, then verify again"
        raise ModelError(f"{first.url}: {', '.join(first.damaged)} damaged; {remedy}")


@models.command("evict")
def evict(
    urls: Annotated[list[str] | None, typer.Argument(help="Which to remove.", metavar="[URL]...")] = None,
    to_bytes: Annotated[
        int | None, typer.Option("--to", min=0, help="Remove by age until this many bytes are left.")
    ] = None,
    is_json: AsJson = False,
) -> None:
    """Remove models from the cache; one that is in use stays."""
    from filmgate.models.weights.location import parse_location

    cache = _open()
    if bool(urls) == (to_bytes is not None):
        raise UsageError("name models, or say --to BYTES", option="URL")
    if to_bytes is not None:
        evicted, kept = cache.shrink(to_bytes), []
    else:
        places = [parse_location(url) for url in urls or ()]
        verdicts = {place.url: cache.evict(place) for place in places}
        evicted = [url for url, is_gone in verdicts.items() if is_gone]
        kept = [url for url, is_gone in verdicts.items() if not is_gone]
    typer.echo(json.dumps({"evicted": evicted, "kept": kept}) if is_json else "\n".join(evicted))
    if kept:
        raise ModelError(f"{', '.join(kept)} is in use or not in the cache")


def tell_pulled() -> "Report":
    """A line on stderr every two seconds of a pull; a short one says nothing."""
    said_at = time.monotonic()

    def report(done_bytes: int, total_bytes: int) -> None:
        nonlocal said_at
        if time.monotonic() - said_at >= _REPORT_SECONDS:
            said_at = time.monotonic()
            typer.echo(f"pulled {_gib(done_bytes)} of {_gib(total_bytes)}", err=True)

    return report


def _open() -> "ModelCache":
    from filmgate.models.weights import open_cache
    from filmgate.settings import load_settings

    settings = load_settings()
    return open_cache(settings.models, settings.data)


def _as_dict(holding: "Holding") -> dict[str, object]:
    return asdict(holding) | {"folder": str(holding.folder)}


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.2f} GiB"
