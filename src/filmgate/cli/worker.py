"""`filmgate worker`: one process per GPU, against the queue and the store of the settings."""

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from filmgate.errors import UsageError
from filmgate.settings import load_settings

DEFAULT_MODEL = "flipbook"


def worker(
    model: Annotated[
        list[str] | None,
        typer.Option(help="NAME, NAME=FOLDER, NAME=HUB/ID or NAME=s3://...; once for each it may load."),
    ] = None,
    data: Annotated[Path | None, typer.Option(help="The data folder, instead of the setting's.")] = None,
) -> None:
    """Lease jobs, render them, store the clips, until SIGTERM."""
    settings = load_settings()
    if data is not None:
        settings = settings.model_copy(update={"data": data})
    models = parse_models(model or [DEFAULT_MODEL])
    from filmgate.weights import localise, open_cache
    from filmgate.work import run_worker
    from filmgate.worker.gpu import GpuRunner

    with ExitStack() as held:

        def make_runner() -> GpuRunner:
            cache = open_cache(settings.models, settings.data)
            folders = {name: localise(place, cache, held) for name, place in models.items()}
            return GpuRunner(folders, settings.pipeline)

        run_worker(settings, make_runner)


def parse_models(given: list[str]) -> dict[str, str]:
    """`wan=/models/wan` is what clients call wan; a bare name is its own location, and an address in a bucket
    is called by the model's name there.
    """
    from filmgate.weights.location import is_remote, parse_location

    models = {}
    for text in given:
        if is_remote(text):
            models[parse_location(text).name] = text
            continue
        name, _, location = text.partition("=")
        if not name or (location == "" and "=" in text):
            raise UsageError(f"{text!r} is not NAME or NAME=FOLDER", option="--model")
        models[name] = location or name
    return models
