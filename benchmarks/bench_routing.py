"""The cost of choosing a route, and of spilling thousands of waiting jobs, on SQLite and PostgreSQL.

A choice for the GPU is the baseline of a choice for the provider. The bulk insert of the same jobs is the
baseline of the spill.
"""

import time
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from benchmarks.queue_databases import (
    MODEL,
    TENANTS,
    DatabaseUrl,
    Engines,
    fill_queue,
    make_ticket,
    opened_databases,
    opened_servers,
)
from benchmarks.report import JsonFlag, print_report, run
from filmgate.database.engine import Database
from filmgate.jobs import ManagedPolicy, Route, TenantId, VideoSpec, WorkerId
from filmgate.providers.adaptation import adapt
from filmgate.providers.base import ProviderModel, Rendition
from filmgate.providers.breaker import Breaker
from filmgate.providers.disabled import DisabledProvider
from filmgate.providers.quotes import ProviderQuotes
from filmgate.scheduling import open_queue, open_reader
from filmgate.scheduling.forecast import Forecast, LiveForecast, forecast
from filmgate.scheduling.router import Router
from filmgate.scheduling.simulation import Slot
from filmgate.scheduling.snapshot import Snapshot
from filmgate.scheduling.spill import Spiller
from filmgate.scheduling.workers import WorkerRegistry, WorkerStatus
from filmgate.settings import QueueSettings, RoutingSettings
from filmgate.store.keys.data_keys import DataKeys
from filmgate.store.keys.files import FileKeyring
from filmgate.tenants.base import Tenant
from filmgate.tenants.registry import TenantRegistry

ALLOWED = ManagedPolicy(is_allowed=True)
BENCH_MODEL = ProviderModel("bench", "bench", None, (), (), None, 0.1, 30.0, 4000, takes_image=False)
CHOICES_PER_SAMPLE = 100
GPU_WORKER = WorkerStatus(WorkerId("gpu"), Route.GPU, (MODEL,))
MANAGED_WORKER = WorkerStatus(WorkerId("managed"), Route.MANAGED, (MODEL,))


class UnlimitedProvider(DisabledProvider):
    """Accepts every job and renders none."""

    @property
    def name(self) -> str:
        return "bench"

    def models(self) -> tuple[ProviderModel, ...]:
        return (BENCH_MODEL,)

    def adapt(self, spec: VideoSpec, policy: ManagedPolicy) -> Rendition:
        return adapt(spec, self.models(), policy)


def main(
    engines: Engines = "sqlite,postgresql",
    database_url: DatabaseUrl = None,
    waiting: Annotated[int, typer.Option(min=1, help="Waiting jobs when the spill runs.")] = 10_000,
    choices: Annotated[int, typer.Option(min=200, help="Timed choices of each kind.")] = 20_000,
    is_json: JsonFlag = False,
) -> None:
    """Choose routes, then run one spill over a long queue."""
    choice = measure_choices(choices)
    with opened_servers(engines, database_url) as servers:
        spills = {name: measure_spill(url, waiting) for name, url in servers.items()}
    ratios = {"provider_to_gpu_choice": round(choice["provider_us"] / choice["gpu_us"], 3)} | {
        f"{name}_spill_to_insert": round(spill["seconds"] / spill["insert_seconds"], 3)
        for name, spill in spills.items()
    }
    settings = {"waiting": waiting, "choices": choices}
    print_report("routing", settings, {"choice": choice, "spill": spills}, ratios, is_json=is_json)


def measure_choices(choices: int) -> dict[str, float]:
    """CPU microseconds of one choice: for a job that stays on the GPU, and for one the provider takes."""
    with TemporaryDirectory() as folder, opened_databases(None, Path(folder), ("choices",)) as (database,):
        router = open_router(database)
    current = forecast(Snapshot(0.0, workers=(GPU_WORKER, MANAGED_WORKER)))
    gpu, provider = (
        [time_choice(router, wait, current) for _ in range(max(choices // CHOICES_PER_SAMPLE, 2))]
        for wait in (1.0, 500.0)
    )
    p99 = quantiles(provider, n=100)[98]
    return {
        "gpu_us": round(median(gpu), 2),
        "provider_us": round(median(provider), 2),
        "provider_p99_us": round(p99, 2),
    }


def measure_spill(url: str | None, waiting: int) -> dict[str, float]:
    """One spill over a queue that a single GPU would need a day for."""
    with TemporaryDirectory() as folder, opened_databases(url, Path(folder), ("spill",)) as (database,):
        keys = DataKeys(FileKeyring(Path(folder) / "keys"))
        spiller = open_spiller(database, keys)
        started = time.perf_counter()
        fill_queue(database, keys, waiting, time.time() - 1.0)
        insert_seconds = time.perf_counter() - started
        started, cpu_started = time.perf_counter(), time.process_time()
        moved = spiller.run()
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    return {
        "moved": moved,
        "seconds": round(seconds, 6),
        "cpu_seconds": round(cpu_seconds, 6),
        "insert_seconds": round(insert_seconds, 6),
    }


def open_router(database: Database) -> Router:
    settings = RoutingSettings()
    quotes = ProviderQuotes(UnlimitedProvider(), Breaker(database, "bench", settings))
    quotes.refresh()
    return Router(quotes, settings)


def open_spiller(database: Database, keys: DataKeys) -> Spiller:
    tenants = TenantRegistry(database)
    for number in range(TENANTS):
        tenants.add(Tenant(TenantId(f"tenant-{number}"), managed=ALLOWED))
    for worker in (GPU_WORKER, MANAGED_WORKER):
        WorkerRegistry(database).heartbeat(worker)
    queue, reader = open_queue(database, keys, QueueSettings()), open_reader(database, keys)
    return Spiller(open_router(database), queue, reader, LiveForecast(reader), tenants)


def time_choice(router: Router, wait_seconds: float, current: Forecast) -> float:
    """CPU microseconds of one choice, which does no I/O; the average of a sample."""
    ticket, slot = make_ticket(0), Slot(1, wait_seconds, wait_seconds + 10.0)
    started = time.thread_time()
    for _ in range(CHOICES_PER_SAMPLE):
        router.choose(ticket, ALLOWED, slot, current)
    return (time.thread_time() - started) * 1e6 / CHOICES_PER_SAMPLE


if __name__ == "__main__":
    run(main)
