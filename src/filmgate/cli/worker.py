"""`filmgate worker`: one process per GPU, or one that waits for the managed provider."""

from contextlib import ExitStack
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated

import typer

from filmgate.errors import UsageError

if TYPE_CHECKING:
    from filmgate.settings import Settings
    from filmgate.worker.base import Runner

DEFAULT_MODEL = "flipbook"


def worker(
    model: Annotated[
        list[str] | None,
        typer.Option(help="NAME, FOLDER, HUB/ID, s3://..., or NAME=any of them; once for each it may load."),
    ] = None,
    data: Annotated[Path | None, typer.Option(help="The data folder, instead of the setting's.")] = None,
    is_managed: Annotated[
        bool, typer.Option("--managed", help="Have the provider of fallback.* render; needs no GPU.")
    ] = False,
) -> None:
    """Lease jobs, render them, store the clips, until SIGTERM."""
    from filmgate.settings import load_settings

    settings = load_settings()
    if data is not None:
        settings = settings.model_copy(update={"data": data})
    if is_managed:
        run_managed(settings, model or [])
        return
    models = parse_models(model or [DEFAULT_MODEL])
    from filmgate.models.weights import ensure_local, open_cache
    from filmgate.worker_process import run_worker

    with ExitStack() as held:

        def make_runner() -> "Runner":
            from filmgate.worker.gpu_runner import GpuRunner  # imports torch

            cache = open_cache(settings.models, settings.data)
            folders = {name: ensure_local(place, cache, held) for name, place in models.items()}
            return GpuRunner(folders, settings.pipeline)

        run_worker(settings, make_runner)


def run_managed(settings: "Settings", models: list[str]) -> None:
    """Every model the service offers, unless told which: the provider's worker has none of its own."""
    from filmgate.models.cards import open_registry
    from filmgate.providers import open_provider
    from filmgate.worker_process import run_managed_worker

    if settings.provider.kind == "disabled":
        raise UsageError("no provider is configured; set provider.kind", option="--managed")
    admission = settings.admission
    cards = open_registry(admission.default_model, admission.models_file).cards
    served = tuple(parse_models(models)) or tuple(card.name for card in cards)
    run_managed_worker(settings, served, open_provider(settings.provider))


def parse_models(given: list[str]) -> dict[str, str]:
    """`wan=/models/wan2.1` is what clients call wan; without a name it is called by its last word, and an
    address in a bucket by the model's name there.
    """
    from filmgate.models.weights.location import is_remote, parse_location

    models = {}
    for text in given:
        if is_remote(text):
            models[parse_location(text).name] = text
            continue
        name, _, location = text.partition("=")
        if not name or (location == "" and "=" in text):
            raise UsageError(f"{text!r} is not NAME or NAME=FOLDER", option="--model")
        models[name if location else PurePath(name).name] = location or name
    return models
