"""`filmgate worker`: one process per GPU, against the queue and the store of the settings."""

from pathlib import Path, PurePath
from typing import Annotated

import typer

from filmgate.errors import UsageError
from filmgate.settings import load_settings

DEFAULT_MODEL = "flipbook"


def worker(
    model: Annotated[
        list[str] | None,
        typer.Option(help="NAME, FOLDER, HUB/ID, or NAME=any of them; once for each model it may load."),
    ] = None,
    data: Annotated[Path | None, typer.Option(help="The data folder, instead of the setting's.")] = None,
) -> None:
    """Lease jobs, render them, store the clips, until SIGTERM."""
    settings = load_settings()
    if data is not None:
        settings = settings.model_copy(update={"data": data})
    models = parse_models(model or [DEFAULT_MODEL])
    from filmgate.work import run_worker
    from filmgate.worker.gpu import GpuRunner

    run_worker(settings, lambda: GpuRunner(models, settings.pipeline))


def parse_models(given: list[str]) -> dict[str, str]:
    """`wan=/models/wan2.1` is what clients call wan; without a name it is called by its last word."""
    models = {}
    for text in given:
        name, _, location = text.partition("=")
        if not name or (location == "" and "=" in text):
            raise UsageError(f"{text!r} is not NAME or NAME=FOLDER", option="--model")
        models[name if location else PurePath(name).name] = location or name
    return models
