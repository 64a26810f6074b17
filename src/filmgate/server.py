"""Wires the server process: the API, its services, background tasks and the worker children."""

import gc
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import FrameType

from prometheus_client import CollectorRegistry

from filmgate.admission.accept import Admission, AdmissionServices
from filmgate.admission.screening import open_screener
from filmgate.api.app import build_app
from filmgate.api.edge import Edge
from filmgate.api.health import api_readiness
from filmgate.api.http_server import check_exposure, export_expiry, listen, open_server
from filmgate.api.services import EnabledTenants, Services
from filmgate.api.stream_links import StreamLinks
from filmgate.audit.checkpoints import Checkpoints
from filmgate.audit.installation import open_checkpoints, open_installation_signer
from filmgate.audit.log import AuditLog
from filmgate.audit.signing import identify
from filmgate.database import Database, open_database
from filmgate.database.site import Site
from filmgate.database.task_claims import claim_task
from filmgate.maintenance.offboarding import Offboarding
from filmgate.maintenance.retention import Retention
from filmgate.models.adapters import open_adapters
from filmgate.models.cards import ModelRegistry, ServedModels, open_registry, parse_aliases
from filmgate.providers import open_provider
from filmgate.providers.base import Provider
from filmgate.providers.breaker import Breaker, BreakerCollector
from filmgate.providers.quotes import ProviderQuotes
from filmgate.scheduling import durations, open_queue, open_reader
from filmgate.scheduling.forecast import LiveForecast
from filmgate.scheduling.history import History
from filmgate.scheduling.metrics import QueueCollector, QueueTerms
from filmgate.scheduling.queue import SqlQueue
from filmgate.scheduling.router import Router
from filmgate.scheduling.spill import Spiller, return_to_gpu
from filmgate.scheduling.ttl_cache import TtlCache
from filmgate.scheduling.workers import WorkerRegistry
from filmgate.settings import AdmissionSettings, ProviderSettings, Settings
from filmgate.settings.wording import parse_names
from filmgate.slo.report import SloReport
from filmgate.store import open_store
from filmgate.store.base import ObjectStore
from filmgate.store.keys import open_keys
from filmgate.store.keys.data_keys import DataKeys
from filmgate.telemetry.emf import writing_emf
from filmgate.telemetry.logs import configure_logs
from filmgate.telemetry.management import new_registry, running_management
from filmgate.telemetry.periodic import Periodic
from filmgate.telemetry.tracing import Tracer, open_tracer
from filmgate.telemetry.untraced import NO_TRACER
from filmgate.tenants.local import ensure_local_tenant
from filmgate.tenants.registry import TenantRegistry
from filmgate.worker.supervisor import WorkerChild, running_workers

RETENTION_SECONDS = 60.0
_ORPHANS_SECONDS = 3600.0
# How often each replica tries to claim a task that one of them runs.
_CLAIM_SECONDS = 600.0
_MIN_SWEEP_SECONDS = 0.2
_CARDS_SECONDS = 2.0
# How long a thread may keep the interpreter while the event loop waits for it: Python's default is 5 ms, and
# the loop releases the interpreter with every send and receive.
_SWITCH_SECONDS = 0.0005
# A full garbage collection stops all threads. Modules, schemas and routes are 170,000 objects, a tenth of a
# second: they are frozen. A thousand connections are about 50 ms: it runs a tenth as often as by default.
_GC_THRESHOLDS = (700, 10, 100)


@dataclass(frozen=True, slots=True)
class ServerServices:
    """What the API uses, and what the background tasks need in addition."""

    api: Services
    queue: SqlQueue
    router: Router | None
    checkpoints: Checkpoints
    database: Database


def open_services(
    settings: Settings,
    provider: Provider | None = None,
    read_starting: Callable[[], frozenset[str]] = frozenset,
    tracer: Tracer = NO_TRACER,
) -> ServerServices:
    """Everything the server uses. `read_starting` returns the models that its own workers are loading."""
    check_exposure(settings.api)
    database = open_database(settings.queue, settings.data)
    keys = open_keys(settings.store, settings.data)
    tenants = TenantRegistry(database)
    ensure_local_tenant(tenants, settings.data)
    store = open_store(settings.store, settings.data, keys)
    record_site(database, settings, store, keys)
    queue = open_queue(database, keys, settings.queue, usd_per_gpu_hour=settings.api.usd_per_gpu_hour)
    reader = open_reader(database, keys)
    audit = AuditLog(database)
    forecast = LiveForecast(reader)
    router = open_router(database, provider, settings) if provider is not None else None
    models = open_models(database, settings.admission, read_starting)
    adapters = open_adapters(settings.models.adapters_file)
    admitting = AdmissionServices(
        queue=queue,
        reader=reader,
        store=store,
        forecast=forecast,
        models=models,
        screener=open_screener(settings.admission.rules_file, settings.classifier),
        digests=queue.digests,
        router=router,
        audit=audit,
        read_starting=read_starting,
        tracer=tracer,
        adapters=adapters,
    )
    api = Services(
        admission=Admission(admitting, settings.admission, settings.slo, settings.pipeline.codec),
        queue=queue,
        reader=reader,
        store=store,
        tenants=tenants,
        forecast=forecast,
        models=models,
        settings=settings.api,
        link_seconds=settings.store.link_seconds,
        stream_links=StreamLinks(keys, settings.store.link_seconds),
        enabled=EnabledTenants(tenants),
        offboarding=Offboarding(database, queue, store, keys, tenants),
        audit=audit,
        workers=WorkerRegistry(database),
        slo=SloReport(database, settings),
        history=History(database),
        digests=queue.digests,
        adapters=adapters,
        edge=Edge(settings.limits),
        spool_folder=settings.data,
        tracer=tracer,
    )
    return ServerServices(api, queue, router, open_checkpoints(database, settings), database)


def record_site(database: Database, settings: Settings, store: ObjectStore, keys: DataKeys) -> None:
    """Record what all processes must agree on. Raises SettingsError if this process has something else."""
    own = {"store.url": store.identity, "store.keyring": keys.identity}
    # A signing key that is not part of the keyring must be the same on all servers, too.
    if settings.audit.signing_key and (signer := open_installation_signer(settings)) is not None:
        own["audit.signing_key"] = identify(signer.public_key)
    Site(database, own).record()


def open_models(
    database: Database, settings: AdmissionSettings, read_starting: Callable[[], frozenset[str]]
) -> ModelRegistry:
    """The models that a request can name: shipped, configured, announced by workers, or loading now."""
    cold = parse_names(settings.scale_from_zero)
    served = TtlCache(partial(WorkerRegistry(database).served, cold), _CARDS_SECONDS)

    def read_served() -> ServedModels:
        known = served.get()
        return replace(known, names=known.names | read_starting())

    aliases = parse_aliases(settings.model_aliases)
    return open_registry(settings.default_model, settings.models_file, read_served, aliases)


def open_configured(settings: ProviderSettings) -> Provider | None:
    """The configured provider, None when it is disabled."""
    return None if settings.kind == "disabled" else open_provider(settings)


def open_router(database: Database, provider: Provider, settings: Settings) -> Router:
    """The choice between local GPUs and this provider."""
    breaker = Breaker(database, provider.name, settings.routing)
    return Router(ProviderQuotes(provider, breaker), settings.routing)


def serve(
    settings: Settings,
    on_listening: Callable[[int], None],
    models: Mapping[str, str],
    on_failure: Callable[[str], None],
) -> None:
    """Run until SIGTERM or SIGINT: stop accepting, finish open requests, stop the workers.

    `on_listening` is called with the port. The embedded worker serves `models`, locations by name; there is
    none without models. `on_failure` is called with the reason when a worker cannot start.
    """
    configure_logs()
    children = embedded_workers(settings, models, on_failure)
    gpu_worker = children[0] if children else None

    def read_starting() -> frozenset[str]:
        return frozenset(models) if gpu_worker is not None and not gpu_worker.has_failed else frozenset()

    tracer = open_tracer(settings.traces, "api")
    services = open_services(settings, open_configured(settings.provider), read_starting, tracer)
    registry = open_metrics(services, settings)
    app = build_app(services.api, registry)
    listener = listen(settings.api)
    _reduce_loop_pauses()
    # uvicorn raises the signal that stopped it again when it is done: it must run our `finally`.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _exit)
    try:
        with (
            running_management(settings.management, registry, api_readiness(services.api)),
            writing_emf(registry, settings.management.cloudwatch_seconds),
        ):
            on_listening(listener.getsockname()[1])
            with background_tasks(services, settings), running_workers(children):
                open_server(app, settings.api, listener).run(sockets=[listener])
    finally:
        listener.close()
        tracer.close()


def _reduce_loop_pauses() -> None:
    """Keep the pauses of the event loop short while other threads work and requests allocate memory."""
    sys.setswitchinterval(_SWITCH_SECONDS)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


def open_metrics(services: ServerServices, settings: Settings) -> CollectorRegistry:
    """The metrics of the service and of this process."""
    registry = new_registry()
    registry.register(QueueCollector(services.api.reader, time.time, QueueTerms.of(settings)))
    if settings.provider.kind != "disabled":
        registry.register(BreakerCollector(services.database, settings.provider.kind))  # a provider's name
    if settings.api.tls_certificate:
        export_expiry(Path(settings.api.tls_certificate), registry)
    return registry


def _exit(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(0)


def _option(name: str, location: str) -> str:
    return name if name == location else f"{name}={location}"


def embedded_workers(
    settings: Settings, models: Mapping[str, str], on_failure: Callable[[str], None]
) -> list[WorkerChild]:
    """The embedded workers, not started: one for the GPU, one for the provider if there is one."""
    if not models:
        return []
    options = [option for model in models.items() for option in ("--model", _option(*model))]
    kinds = [options] if settings.provider.kind == "disabled" else [options, ["--managed"]]
    drain_seconds = settings.worker.drain_seconds
    return [WorkerChild(settings.data, kind, on_failure, drain_seconds) for kind in kinds]


@contextmanager
def background_tasks(services: ServerServices, settings: Settings) -> Iterator[None]:
    """Retention, orphans, lost wake-ups, audit checkpoints and the spill.

    Every replica may run them: they are idempotent. One replica looks for orphans, because that lists the
    entire store.
    """
    api, router = services.api, services.router
    retention = Retention(api.queue, api.reader, api.store, api.tenants)

    def delete_orphans() -> None:
        if claim_task(services.database, "orphans", _ORPHANS_SECONDS):
            retention.delete_orphans()

    sweep_seconds = max(settings.queue.sweep_seconds, _MIN_SWEEP_SECONDS)
    tasks = [
        Periodic("retention", retention.delete_expired, RETENTION_SECONDS),
        Periodic("orphans", delete_orphans, _CLAIM_SECONDS),
        Periodic("wake-up sweep", services.queue.sweep, sweep_seconds),
        Periodic("slo counts", api.slo.delete_old, _ORPHANS_SECONDS),
        Periodic("history", api.history.delete_old, _ORPHANS_SECONDS),
        Periodic("durations", partial(durations.delete_old, services.database), _ORPHANS_SECONDS),
        Periodic("audit checkpoint", services.checkpoints.run, settings.audit.checkpoint_seconds),
    ]
    spill: Callable[[], int] = partial(return_to_gpu, api.queue, api.reader)
    if router is not None:
        spill = Spiller(router, api.queue, api.reader, api.forecast, api.tenants).run
    tasks.append(Periodic("spill", spill, settings.routing.spill_seconds))
    with ExitStack() as running:
        for task in tasks:
            running.enter_context(task)
        yield
