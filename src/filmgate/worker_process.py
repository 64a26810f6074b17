"""Wires the worker processes: a GPU worker or a managed worker that drains on SIGTERM."""

import math
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from types import FrameType

from prometheus_client import CollectorRegistry

from filmgate.database import Database, open_database
from filmgate.database.site import site_of
from filmgate.errors import DeviceBroken, QueueUnavailable, SettingsError
from filmgate.jobs import Route, WorkerId
from filmgate.models.cards import ModelCard, open_registry
from filmgate.providers.base import Provider
from filmgate.providers.breaker import Breaker
from filmgate.providers.invocations import SqlInvocations
from filmgate.providers.managed.download import ClipDownloader
from filmgate.providers.managed.guarded import GuardedProvider
from filmgate.providers.managed.provider_job import ManagedServices
from filmgate.providers.managed.worker import ManagedWorker
from filmgate.scheduling import open_queue
from filmgate.scheduling.base import JobQueue, Offer, read_tenants
from filmgate.scheduling.workers import HEARTBEAT_SECONDS, WorkerRegistry
from filmgate.settings import AdmissionSettings, Settings
from filmgate.store import open_store
from filmgate.store.base import ObjectStore
from filmgate.store.keys import open_keys
from filmgate.telemetry.emf import writing_emf
from filmgate.telemetry.logs import Log, configure_logs
from filmgate.telemetry.management import new_registry, running_management
from filmgate.telemetry.metrics import WORKER_INFO
from filmgate.telemetry.periodic import Periodic
from filmgate.telemetry.tracing import Tracer, open_tracer
from filmgate.telemetry.untraced import NO_TRACER
from filmgate.tenants.registry import TenantRegistry
from filmgate.worker.base import Runner, SelfCheckingRunner
from filmgate.worker.health import GPU_PARTS, MANAGED_PARTS, WorkerHealth, WorkerTelemetry
from filmgate.worker.interruption import read_instance_id, watched_interruptions
from filmgate.worker.loop import Worker
from filmgate.worker.metrics import WorkerMetrics
from filmgate.worker.publisher import Publisher
from filmgate.worker.starts import record_cold_start, record_load
from filmgate.worker.tracing import GpuReadings, StartUp, WorkerTracing

_READY_CHECK_SECONDS = 0.5
# How long after the announced time an interrupted instance may still run.
_INTERRUPTED_SECONDS = 300.0
# How long the jobs of a broken GPU may take to be handed back.
_BROKEN_SECONDS = 20.0
# How long a worker then shows the error: two scrapes, 30 s apart.
_SHOWN_SECONDS = 75.0


MakeRunner = Callable[[Database, WorkerMetrics, CollectorRegistry], Runner]


def run_worker(
    settings: Settings,
    make_runner: MakeRunner,
    on_ready: Callable[[], None] = lambda: None,
    start_up: StartUp | None = None,
) -> None:
    """Work until SIGTERM or SIGINT; a second signal ends the process immediately.

    `on_ready` is called when the model is loaded and the canary clip is right. `start_up` has the phases that
    `make_runner` records.
    The runner is made last: it needs seconds and a GPU, and wrong settings should cost neither.
    """
    health = WorkerHealth(GPU_PARTS)
    health.on_ready(on_ready)
    with _opened_process(settings, "worker", health) as (services, registry):
        metrics = WorkerMetrics(registry, partial(record_load, services.database))
        runner = make_runner(services.database, metrics, registry)
        instance_id = read_instance_id(settings.worker) or socket.gethostname()
        tracing = WorkerTracing(services.tracer, instance_id, _gpu_of(runner), start_up or StartUp())
        worker = Worker(
            worker_id=new_worker_id(),
            runner=runner,
            queue=services.queue,
            store=services.store,
            settings=settings.worker,
            telemetry=WorkerTelemetry(health, metrics, tracing),
        )
        status = worker.status
        metrics.identify(status.worker_id, status.route, status.device, _gpu_of(runner).uuid or "")
        health.on_ready(lambda: metrics.ready(record_cold_start(services.database, runner)))
        stop = Stop()
        with (
            runner.watched(partial(abandon, worker))
            if isinstance(runner, SelfCheckingRunner)
            else nullcontext(),
            watched_interruptions(settings.worker, worker.drain) as watch,
        ):
            try:
                work_until_drained(services, worker, stop, runner.cards)
            except DeviceBroken:
                # The alerts on GPUs read the metrics of this process.
                wait_for_signal(stop, time.time() + _SHOWN_SECONDS)
                raise
            if watch is not None and watch.interrupted_at is not None:
                wait_for_signal(stop, watch.interrupted_at + _INTERRUPTED_SECONDS)


def _gpu_of(runner: Runner) -> GpuReadings:
    return runner.gpu if isinstance(runner, SelfCheckingRunner) else GpuReadings()


def abandon(worker: Worker, error: DeviceBroken) -> None:
    """Discard the jobs of a worker whose GPU is broken, and end the process even if the GPU hangs.

    The lease of a job that could not be handed back expires, and another worker takes it.
    """
    end = threading.Timer(_BROKEN_SECONDS + _SHOWN_SECONDS, os._exit, (error.exit_code,))
    end.daemon = True
    end.start()
    worker.abandon(error)


def run_managed_worker(settings: Settings, models: tuple[str, ...], provider: Provider) -> None:
    """Let the provider render jobs until SIGTERM or SIGINT; a second signal ends the process immediately.

    Without `models`, the jobs of all models of the service: those with a card in a file, and those that GPU
    workers have served.
    """
    health = WorkerHealth(MANAGED_PARTS)
    with _opened_process(settings, "managed-worker", health) as (services, registry):

        def read_models() -> tuple[str, ...]:
            return models or _models_of_service(services.database, settings.admission)

        worker = build_managed_worker(services, settings, read_models(), provider, health)
        status = worker.status
        WORKER_INFO.live_gauge(registry).labels(status.worker_id, status.route, status.device, "").set(1)
        with Periodic("models of the service", lambda: worker.serve(read_models()), HEARTBEAT_SECONDS):
            work_until_drained(services, worker, Stop())


def _models_of_service(database: Database, settings: AdmissionSettings) -> tuple[str, ...]:
    cards = open_registry(settings.default_model, settings.models_file).cards
    served = WorkerRegistry(database).served()
    return tuple(sorted({*(card.name for card in cards), *served.names, *served.absent}))


@contextmanager
def _opened_process(
    settings: Settings, service: str, health: WorkerHealth
) -> Iterator[tuple["WorkerServices", CollectorRegistry]]:
    """The logs, the services and the management port of a worker process."""
    configure_logs()
    registry = new_registry()
    health.export(registry)
    with (
        opened_services(settings, service) as services,
        running_management(settings.management, registry, health.readiness()),
        writing_emf(registry, settings.management.cloudwatch_seconds),
    ):
        yield services, registry


@dataclass(frozen=True, slots=True)
class WorkerServices:
    """What workers share with the server: the queue and the store, in one database; and their tracer."""

    database: Database
    queue: JobQueue
    store: ObjectStore
    tracer: Tracer = NO_TRACER


@contextmanager
def opened_services(settings: Settings, service: str = "worker") -> Iterator[WorkerServices]:
    """The queue and the store of these settings. `service` names the process in traces."""
    if settings.worker.heartbeat_seconds * 2 > settings.queue.lease_seconds:
        raise SettingsError(
            "must be at most half of queue.lease_seconds, or leases expire between two heartbeats",
            option="worker.heartbeat_seconds",
        )
    with (
        closing(open_tracer(settings.traces, service)) as tracer,
        closing(open_database(settings.queue, settings.data)) as database,
    ):
        keys = open_keys(settings.store, settings.data)
        store = open_store(settings.store, settings.data, keys)
        site = site_of(database, store, keys)
        price = settings.api.usd_per_gpu_hour
        with closing(open_queue(database, keys, settings.queue, site.may_lease, price)) as queue:
            site.require()
            for tenant_id in read_tenants(settings.worker):
                TenantRegistry(database).find(tenant_id)  # a misspelt name would lease nothing, silently
            yield WorkerServices(database, queue, store, tracer)


@dataclass(slots=True)
class Stop:
    """Why this process stops working: a signal, or an operator who drained the worker."""

    is_signalled: bool = False
    is_drained_by_operator: bool = False


@contextmanager
def announced(
    services: WorkerServices,
    worker: Worker | ManagedWorker,
    stop: Stop,
    read_cards: Callable[[], tuple[ModelCard, ...]],
) -> Iterator[None]:
    """Announce the worker with heartbeats, from the moment it is ready until the block ends.

    A heartbeat returns the drain request of an operator (`POST /v1/workers/{id}/drain`).
    """
    registry, next_at = WorkerRegistry(services.database), 0.0

    def announce() -> None:
        nonlocal next_at
        if worker.is_ready and time.monotonic() >= next_at:
            is_asked = registry.heartbeat(worker.status, read_cards())
            if is_asked and not stop.is_drained_by_operator:
                stop.is_drained_by_operator = True
                Log("worker").info("an operator drains this worker", worker_id=worker.status.worker_id)
                worker.drain()
            next_at = time.monotonic() + HEARTBEAT_SECONDS

    try:
        with Periodic("worker heartbeat", announce, _READY_CHECK_SECONDS):
            yield
    finally:
        # A worker that does not leave is forgotten after the timeout.
        with suppress(QueueUnavailable):
            registry.leave(worker.status.worker_id)


def build_managed_worker(
    services: WorkerServices,
    settings: Settings,
    models: tuple[str, ...],
    provider: Provider,
    health: WorkerHealth | None = None,
) -> ManagedWorker:
    """The worker of the managed route."""
    tenants = TenantRegistry(services.database)
    managed = ManagedServices(
        provider=provider,
        invocations=SqlInvocations(services.database),
        guarded=GuardedProvider(Breaker(services.database, provider.name, settings.routing)),
        store=services.store,
        publisher=Publisher(services.queue, services.store),
        downloader=ClipDownloader(provider, services.store, settings.worker.store_retry_seconds),
        policy_of=lambda tenant_id: tenants.find(tenant_id).managed,
        settings=settings.provider,
        tracing=WorkerTracing(services.tracer, socket.gethostname()),
    )
    names = read_tenants(settings.worker)
    offer = Offer(new_worker_id(), models, Route.MANAGED, f"managed:{provider.name}", tenants=names)
    poll_seconds = settings.queue.poll_seconds
    return ManagedWorker(offer, services.queue, managed, settings.worker, poll_seconds, health)


def work_until_drained(
    services: WorkerServices,
    worker: Worker | ManagedWorker,
    stop: Stop,
    read_cards: Callable[[], tuple[ModelCard, ...]] = tuple,
) -> None:
    """Announce the worker and run it. The first signal drains it, the second ends the process.

    A worker that an operator drained stays idle until a signal.
    """

    def drain(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        stop.is_signalled = True
        worker.drain()

    with announced(services, worker, stop, read_cards):
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, drain)
        worker.run()
    if stop.is_drained_by_operator:
        wait_for_signal(stop)


def wait_for_signal(stop: Stop, ends_at: float = math.inf) -> None:
    """Stay after a drain or an interruption: a process that ends is started again, and would lease jobs.

    An instance that was stopped instead of terminated runs again after `ends_at`; then the worker ends.
    """
    while not stop.is_signalled and time.time() < ends_at:
        time.sleep(_READY_CHECK_SECONDS)


def new_worker_id() -> WorkerId:
    """A unique id that names the host: `gpu-node-3-9f2c41d0`."""
    return WorkerId(f"{socket.gethostname()}-{secrets.token_hex(4)}")
