"""Builds the worker processes: settings in, a worker that drains on SIGTERM out."""

import secrets
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Protocol

from filmgate.database import Database, open_database
from filmgate.errors import SettingsError
from filmgate.jobs import WorkerId
from filmgate.providers.base import Provider
from filmgate.providers.breaker import Breaker
from filmgate.providers.managed.download import Courier
from filmgate.providers.managed.guarded import Guard
from filmgate.providers.managed.provider_job import Parts
from filmgate.providers.managed.returns import send_home
from filmgate.providers.managed.worker import ManagedWorker
from filmgate.scheduling import open_invocations, open_queue
from filmgate.scheduling.base import JobQueue
from filmgate.scheduling.workers import Roster
from filmgate.settings import Settings
from filmgate.store import open_store
from filmgate.store.base import ObjectStore
from filmgate.store.keys import open_keys
from filmgate.telemetry.logs import configure_logs
from filmgate.tenants import open_tenants
from filmgate.worker.base import Describes, Runner
from filmgate.worker.loop import Worker
from filmgate.worker.presence import present
from filmgate.worker.publisher import Publisher


class Drainable(Protocol):
    """A worker of either route."""

    def run(self) -> None: ...

    def drain(self) -> None: ...


def run_worker(settings: Settings, make_runner: Callable[[], Runner]) -> None:
    """Work until SIGTERM or SIGINT; a second signal ends the process at once.

    The runner is made last: it takes seconds and a GPU, a wrong setting should cost neither.
    """
    configure_logs()
    with opened_stations(settings) as stations:
        runner, worker_id = make_runner(), new_worker_id()
        worker = Worker(
            worker_id=worker_id,
            runner=runner,
            queue=stations.queue,
            store=stations.store,
            settings=settings.worker,
        )
        describe = runner.cards if isinstance(runner, Describes) else tuple
        with present(Roster(stations.database), worker_id, runner.device, describe):
            run_until_drained(worker)


def run_managed_worker(settings: Settings, models: tuple[str, ...], provider: Provider) -> None:
    """Have the provider render jobs until SIGTERM or SIGINT; a second signal ends the process at once."""
    configure_logs()
    with opened_stations(settings) as stations:
        run_until_drained(build_managed_worker(stations, settings, models, provider))


@dataclass(frozen=True, slots=True)
class Stations:
    """What both kinds of worker meet the server in."""

    database: Database
    queue: JobQueue
    store: ObjectStore


@contextmanager
def opened_stations(settings: Settings) -> Iterator[Stations]:
    """Queue and store of these settings, for as long as the worker runs."""
    if settings.worker.heartbeat_seconds * 2 > settings.queue.lease_seconds:
        raise SettingsError(
            "must be at most half of queue.lease_seconds, or leases expire between two heartbeats",
            option="worker.heartbeat_seconds",
        )
    database = open_database(settings.queue, settings.data)
    keys = open_keys(settings.store, settings.data)
    queue = open_queue(database, keys, settings.queue)
    try:
        yield Stations(database, queue, open_store(settings.store, settings.data, keys))
    finally:
        database.close()


def build_managed_worker(
    stations: Stations, settings: Settings, models: tuple[str, ...], provider: Provider
) -> ManagedWorker:
    """The worker of the managed route, with everything its errands need."""
    publisher = Publisher(stations.queue, stations.store, settings.worker)
    tenants = open_tenants(stations.database)
    parts = Parts(
        provider=provider,
        invocations=open_invocations(stations.database),
        guard=Guard(Breaker(stations.database, provider.name, settings.routing)),
        store=stations.store,
        publisher=publisher,
        courier=Courier(provider, stations.store, publisher),
        policy_of=lambda tenant_id: tenants.find(tenant_id).managed,
        send_home=partial(send_home, publisher),
        settings=settings.fallback,
    )
    return ManagedWorker(new_worker_id(), models, stations.queue, parts, settings.worker)


def run_until_drained(worker: Drainable) -> None:
    """The first signal drains, the second ends the process at once."""

    def drain(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        worker.drain()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, drain)
    worker.run()


def new_worker_id() -> WorkerId:
    """Unlike any other, even after a restart on the same host: `gpu-node-3-9f2c41d0`."""
    return WorkerId(f"{socket.gethostname()}-{secrets.token_hex(4)}")
