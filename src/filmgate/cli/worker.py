"""`filmgate worker`: a process that renders on one GPU, or at the managed provider."""

from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from filmgate.cli.data_folder import Data, require_data_folder, settings_with
from filmgate.cli.options import read_tenant
from filmgate.errors import FilmgateError, UsageError
from filmgate.telemetry.findings import INSTALL_WORKER, WORKER_MODULES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client import CollectorRegistry

    from filmgate.database import Database
    from filmgate.settings import Settings
    from filmgate.worker.base import Runner
    from filmgate.worker.metrics import WorkerMetrics

CHOOSE_OR_MAKE = (
    "name the server's folder with --data or FILMGATE_DATA; if this machine shares a database and a store "
    "with its server instead of the folder, create an empty one with `mkdir`"
)


def worker(
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="Model to serve: NAME, FOLDER, HUB/ID, s3://... or NAME=LOCATION. Repeat it for more.  "
            "[default: admission.default_model]"
        ),
    ] = None,
    data: Data = None,
    is_managed: Annotated[
        bool,
        typer.Option("--managed", help="Render at the provider that provider.* configures. Needs no GPU."),
    ] = False,
    tenant: Annotated[
        list[str] | None,
        typer.Option(help="Lease only jobs of this tenant. Repeat it for more. Overrides worker.tenants."),
    ] = None,
    failure_file: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Take jobs from the queue, render them and store the clips, until Ctrl-C or SIGTERM."""
    started: list[bool] = []
    with reported_failure(failure_file, started):
        names = ",".join(read_tenant(name) for name in tenant) if tenant else None
        settings = settings_with(data, {"worker.tenants": names})
        require_data_folder(settings, CHOOSE_OR_MAKE)
        if is_managed:
            run_managed(settings, model or [])
        else:
            run_on_gpu(settings, model or [settings.admission.default_model], lambda: started.append(True))


def run_on_gpu(settings: "Settings", given: list[str], on_ready: "Callable[[], None]") -> None:
    """Render these models on the device of this process."""
    models = find_models(given)
    from filmgate.models.weights import ensure_adapter, ensure_local, open_cache
    from filmgate.worker.tracing import StartUp
    from filmgate.worker_process import run_worker

    start_up = StartUp()
    with ExitStack() as held:

        def make_runner(
            database: "Database", metrics: "WorkerMetrics", registry: "CollectorRegistry"
        ) -> "Runner":
            from filmgate.models.adapters import open_adapters
            from filmgate.pipeline.loading.adapters import AdapterCache
            from filmgate.telemetry.gpu_metrics import GpuCollector
            from filmgate.telemetry.rdma import RdmaCollector
            from filmgate.worker.gpu_runner import GpuRunner, Weights  # imports torch
            from filmgate.worker.self_check import SqlGoldenClips

            cache = open_cache(settings.models, settings.data)
            # The default model is pulled now; the others when the worker loads them to read their limits.
            with start_up.phase("model download"):
                ensure_local(next(iter(models.values())), cache, held)
            goldens = SqlGoldenClips(database)
            watch_seconds = settings.worker.gpu_watch_seconds
            known = open_adapters(settings.models.adapters_file)
            adapters = AdapterCache(
                lambda name: [ensure_adapter(place, cache, held) for place in known.find(name).locations],
                settings.models.adapter_cache_bytes,
            )
            weights = Weights(lambda place, kept: ensure_local(place, cache, kept), adapters)
            runner = GpuRunner(models, settings.pipeline, metrics, goldens, watch_seconds, weights)
            held.callback(runner.close)
            registry.register(GpuCollector(lambda: runner.gpu_state))
            registry.register(RdmaCollector())
            return runner

        run_worker(settings, make_runner, on_ready, start_up)


@contextmanager
def reported_failure(report: Path | None, started: list[bool]) -> "Iterator[None]":
    """Write the error of a worker that was never ready to the file that the server reads."""
    try:
        yield
    except Exception as exc:
        if report is not None and not started:
            from filmgate.worker.supervisor import StartFailure, write_failure

            write_failure(report, StartFailure(explain(exc), getattr(exc, "retryable", False)))
        raise


def explain(error: Exception) -> str:
    """The error in one sentence."""
    if isinstance(error, ModuleNotFoundError) and error.name in WORKER_MODULES:
        return f"{error.name} is not installed; {INSTALL_WORKER}"
    text = str(error).partition("\n")[0]
    return text if isinstance(error, FilmgateError) else f"{type(error).__name__}: {text}"


def run_managed(settings: "Settings", models: list[str]) -> None:
    """Serve the given models; by default all models of the service, because the provider renders them."""
    from filmgate.models.names import name_model
    from filmgate.providers import open_provider
    from filmgate.worker_process import run_managed_worker

    if settings.provider.kind == "disabled":
        raise UsageError(
            "no managed provider is configured; set provider.kind, as in FILMGATE_PROVIDER__KIND=bedrock",
            option="--managed",
        )
    served = tuple(name_model(text).name for text in models)
    run_managed_worker(settings, served, open_provider(settings.provider))


def find_models(given: list[str]) -> dict[str, str]:
    """Locations by model name, of any number of `--model`.

    Raises UsageError for a model that cannot be loaded from anywhere, for two models of one name, and for a
    name that no request could contain.
    """
    from filmgate.models.names import check_location, name_model

    models: dict[str, str] = {}
    for text in given:
        model = name_model(text)
        check_location(model.location)
        if "+" in model.name:
            raise UsageError(
                f"the name {model.name} contains +, which requests put before an adapter; choose another one "
                "with NAME=LOCATION",
                option="--model",
            )
        if models.setdefault(model.name, model.location) != model.location:
            raise UsageError(
                f"two models have the name {model.name}; name one of them with NAME=LOCATION",
                option="--model",
            )
    return models
