"""`filmgate models`: the models on this machine, from the hub, from S3 and from folders."""

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from filmgate.cli.data_folder import (
    Data,
    opened_database,
    report_data_folder,
    require_data_folder,
    settings_with,
)
from filmgate.cli.options import AsJson
from filmgate.errors import ModelError, UsageError

if TYPE_CHECKING:
    from filmgate.models.weights.cache import ModelCache
    from filmgate.models.weights.fetch import ReportProgress
    from filmgate.models.weights.inventory import StoredModel

models = typer.Typer(help="Pull, list, search and check models on this machine.", no_args_is_help=True)

Model = Annotated[
    str, typer.Argument(help="A catalog name, HUB/ID, HUB/ID@REVISION or s3://BUCKET/models/NAME/vN/.")
]
Url = Annotated[str, typer.Argument(help="s3://BUCKET/models/NAME/vN/", metavar="URL")]
_PROGRESS_SECONDS = 2.0


@models.command("pull")
def pull(model: Model, data: Data = None, is_json: AsJson = False) -> None:
    """Download a model, check it and print its folder. Files that are present are not downloaded again.

    A hub model is pinned: it is loaded at this revision until it is pulled again.
    """
    from filmgate.models.names import SHIPPED, is_hub_id, name_model
    from filmgate.models.weights.location import is_remote

    place = model if is_remote(model) else name_model(model).location
    if place in SHIPPED or Path(place).exists():
        raise UsageError(f"{model} is on this machine already; use it with --model {model}", option="MODEL")
    location = _find_location(model)
    found = _pull_from_hub(location) if is_hub_id(location) else _pull_from_s3(location, data)
    typer.echo(json.dumps(found) if is_json else found["folder"])


def _find_location(model: str) -> str:
    """The hub id or s3:// URL of a model. Raises UsageError for anything that cannot be pulled."""
    from filmgate.models.names import is_hub_id, name_model
    from filmgate.models.weights.location import is_remote, parse_location

    if is_remote(model):
        parse_location(model, "MODEL")
    location = name_model(model).location
    if is_hub_id(location) or is_remote(location):
        return location
    raise UsageError(
        f"{model!r} is not a model that can be pulled; give a name of the catalog such as wan2.1-t2v-1.3b, a "
        "hub id such as Wan-AI/Wan2.1-T2V-1.3B-Diffusers, or s3://BUCKET/models/NAME/vN/",
        option="MODEL",
    )


def _pull_from_hub(hub_id: str) -> dict[str, object]:
    from filmgate.models.weights.hub import pull_hub_model

    model = pull_hub_model(hub_id, pull_progress(), lambda text: typer.echo(text, err=True))
    typer.echo(f"{len(model.manifest.files)} files checked; pinned to {model.revision}", err=True)
    return {
        "model": model.id,
        "folder": str(model.folder),
        "revision": model.revision,
        "licence": model.licence,
        "size_bytes": model.manifest.total_bytes,
        "sha256": {file.path: file.sha256 for file in model.manifest.files},
    }


def _pull_from_s3(url: str, data: Path | None) -> dict[str, object]:
    from filmgate.models.weights.location import parse_location

    location = parse_location(url)
    acquired = _open_cache(data, is_written=True).acquire(location, pull_progress())
    acquired.lock.close()
    return {"model": location.url, "folder": str(acquired.folder)}


@models.command("list")
def list_models(data: Data = None, is_json: AsJson = False) -> None:
    """List the models on this machine: built-in, in models.folders, and pulled from the hub or S3."""
    _print_models(_stored(data), is_json=is_json)


@models.command("search")
def search(
    text: Annotated[str, typer.Argument(help="Part of a name, in any spelling, or a licence.")],
    data: Data = None,
    is_json: AsJson = False,
) -> None:
    """Search the models on this machine. Exit with 1 if none matches."""
    from filmgate.models.weights.inventory import search_models

    found = search_models(text, _stored(data))
    _print_models(found, is_json=is_json)
    if not found:
        raise ModelError(f"no model on this machine matches {text!r}; `filmgate models pull` downloads one")


@models.command("verify")
def verify(
    model: Annotated[
        str | None, typer.Argument(help="Model to verify.  [default: all pulled models]")
    ] = None,
    data: Data = None,
    is_json: AsJson = False,
) -> None:
    """Read every byte of pulled models and compare digests. The next pull repairs damaged files."""
    from filmgate.models.names import is_hub_id
    from filmgate.models.weights.hub import verify_hub_model
    from filmgate.models.weights.location import parse_location

    named = _find_location(model) if model else None
    cache = _open_cache(data)
    pulled = [each.model for each in _stored(data) if each.source in ("hub", "s3") and each.is_whole]
    names = [named] if named else pulled
    results = [verify_hub_model(n) if is_hub_id(n) else cache.verify(parse_location(n)) for n in names]
    if is_json:
        typer.echo(json.dumps({"models": [asdict(result) for result in results]}))
    else:
        for result in results:
            typer.echo(f"{'damaged' if result.damaged else 'intact':<8} {result.url}")
        if not results:
            typer.echo("no model was pulled, so there is nothing to verify", err=True)
    damaged = [result for result in results if result.damaged]
    if damaged:
        first = damaged[0]
        remedy = "pull it again" if first.is_withdrawn else "stop the processes that use it and verify again"
        raise ModelError(f"{first.url}: {', '.join(first.damaged)} damaged; {remedy}")


@models.command("evict")
def evict(
    names: Annotated[list[str] | None, typer.Argument(help="Models to delete.", metavar="[MODEL]...")] = None,
    to_bytes: Annotated[
        int | None,
        typer.Option(
            "--to",
            min=0,
            help="Delete the least recently used S3 models until at most this many bytes remain.",
        ),
    ] = None,
    data: Data = None,
    is_json: AsJson = False,
) -> None:
    """Delete pulled models from this machine. S3 models that are in use are kept.

    For a hub model, deletes the pinned revision. A worker that has loaded the model keeps running.
    """
    cache = _open_cache(data)
    if bool(names) == (to_bytes is not None):
        raise UsageError("give either models or --to BYTES", option="MODEL")
    if to_bytes is not None:
        evicted, kept = cache.shrink(to_bytes), []
    else:
        results = {model: _evict(model, cache) for model in map(_find_location, names or ())}
        evicted = [model for model, is_evicted in results.items() if is_evicted]
        kept = [model for model, is_evicted in results.items() if not is_evicted]
    text = json.dumps({"evicted": evicted, "kept": kept}) if is_json else "\n".join(evicted)
    typer.echo(text, nl=bool(text))
    if kept:
        raise ModelError(
            f"not deleted, because in use or not pulled: {', '.join(kept)}; see `filmgate models list`"
        )


@models.command("push")
def push(
    folder: Annotated[Path, typer.Argument(help="A diffusers folder, or a folder with one LoRA file.")],
    url: Url,
    is_json: AsJson = False,
) -> None:
    """Upload a model folder to S3 as a new version. The manifest is uploaded last."""
    from filmgate.models.weights.location import parse_location
    from filmgate.models.weights.remote import open_remote
    from filmgate.settings import load_settings

    remote = open_remote(parse_location(url, "URL"), load_settings().models)
    pushed = remote.push(folder, lambda path: typer.echo(path, err=True))
    if is_json:
        typer.echo(json.dumps(asdict(pushed)))
    elif pushed.is_already_published:
        typer.echo(f"{pushed.url} already exists with the same files")
    else:
        typer.echo(
            f"{pushed.url}: {pushed.files} files, {_size(pushed.size_bytes)}, "
            f"{pushed.uploaded_files} uploaded"
        )


def _evict(location: str, cache: "ModelCache") -> bool:
    from filmgate.models.names import is_hub_id
    from filmgate.models.weights.hub import evict_hub_model
    from filmgate.models.weights.location import parse_location

    if is_hub_id(location):
        return evict_hub_model(location.partition("@")[0])
    return cache.evict(parse_location(location))


def pull_progress() -> "ReportProgress":
    """Prints a line on stderr every two seconds of a pull."""
    printed_at = time.monotonic()

    def report(done_bytes: int, total_bytes: int) -> None:
        nonlocal printed_at
        if time.monotonic() - printed_at >= _PROGRESS_SECONDS:
            printed_at = time.monotonic()
            typer.echo(f"pulled {_size(done_bytes)} of {_size(total_bytes)}", err=True)

    return report


def _stored(data: Path | None) -> "list[StoredModel]":
    from filmgate.models.weights.inventory import list_stored_models

    settings = settings_with(data)
    report_data_folder(settings)
    return list_stored_models(settings)


def _print_models(found: "list[StoredModel]", *, is_json: bool) -> None:
    if is_json:
        typer.echo(json.dumps({"models": [asdict(model) for model in found]}))
        return
    width = max((len(model.model) for model in found), default=0)
    for model in found:
        details = [model.licence, model.revision[:12], model.used]
        notes = "  ".join(detail for detail in details if detail)
        size = _size(model.size_bytes)
        typer.echo(f"{model.source:<8}{size:>10}  {model.state:<10}  {model.model:<{width}}  {notes}")


def _open_cache(data: Path | None, *, is_written: bool = False) -> "ModelCache":
    from filmgate.models.weights import open_cache

    settings = settings_with(data)
    if is_written and not settings.models.cache:
        require_data_folder(settings)
        report_data_folder(settings)
    return open_cache(settings.models, settings.data)


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.2f} GiB" if size_bytes >= 2**30 else f"{size_bytes / 2**20:.1f} MiB"


@models.command("reset-canary")
def reset_canary(
    version: Annotated[
        str, typer.Argument(help="First digits of the SHA-256 of the weights, as in metrics.")
    ],
    data: Data = None,
) -> None:
    """Delete a version's golden clips, to which canary checks compare. The next worker makes new ones."""
    from filmgate.worker.self_check import SqlGoldenClips

    if not version:  # an empty variable would delete those of every version
        raise UsageError("give the first digits of a version", option="VERSION")
    with opened_database(settings_with(data)) as database:
        deleted = SqlGoldenClips(database).delete(version)
    if not deleted:
        raise UsageError(
            f"no golden clip is of a version that starts with {version!r}; the metric filmgate_model_loaded "
            "has the versions in use",
            option="VERSION",
        )
    typer.echo(f"deleted {deleted} golden clips")
