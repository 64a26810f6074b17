"""What a choice of route costs, and how long ten thousand waiting jobs take to leave."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory

from filmgate.database.engine import Database
from filmgate.database.migration import migrate
from filmgate.jobs import ManagedPolicy, Route, StageSeconds, TenantId, VideoSpec, WorkerId
from filmgate.providers.adaptation import adapt
from filmgate.providers.base import Offer, Rendition
from filmgate.providers.breaker import Breaker
from filmgate.providers.disabled import DisabledProvider
from filmgate.scheduling import bench, open_book, open_queue
from filmgate.scheduling.base import Backlog, Presence
from filmgate.scheduling.router import Arrival, Router
from filmgate.scheduling.spill import Spiller
from filmgate.settings import QueueSettings, RoutingSettings
from filmgate.store.keys.cache import DataKeys
from filmgate.store.keys.files import FileKeyring
from filmgate.store.keys.sealing import Sealer
from filmgate.tenants import open_tenants
from filmgate.tenants.base import Tenant

ALLOWED = ManagedPolicy(is_allowed=True)
OFFER = Offer("bench", "bench", None, (), (), None, 0.1, 30.0, 4000, takes_image=False)
_CHOICES_A_SAMPLE = 100


class RoomyProvider(DisabledProvider):
    """Takes everything, renders nothing."""

    @property
    def name(self) -> str:
        return "bench"

    def offers(self) -> tuple[Offer, ...]:
        return (OFFER,)

    def adapt(self, spec: VideoSpec, policy: ManagedPolicy) -> Rendition:
        return adapt(spec, self.offers(), policy)


@dataclass(frozen=True, slots=True)
class ChoiceCost:
    """CPU microseconds of one choice: for a job that stays, and for one that leaves."""

    stays_us: float
    leaves_us: float
    leaves_p99_us: float


@dataclass(frozen=True, slots=True)
class SpillCost:
    """One look at so many waiting jobs: how many left, in how many seconds, and with how much CPU here."""

    waiting: int
    left: int
    seconds: float
    cpu_seconds: float


def measure_choices(choices: int) -> ChoiceCost:
    """The router's choice at the gate, with the numbers of a job that is in time and of one that is late."""
    with TemporaryDirectory() as folder:
        database = Database(f"sqlite:///{Path(folder) / 'choices.db'}")
        migrate(database)
        router = open_router(database)
        database.close()
    here = Backlog((), None, (Presence(WorkerId("gpu"), Route.GPU, (bench.MODEL,), 0.0),))
    stays = _time_choices(router, _arrival(1.0), here, choices)
    leaves = _time_choices(router, _arrival(500.0), here, choices)
    p99 = quantiles(leaves, n=100)[98]
    return ChoiceCost(round(median(stays), 2), round(median(leaves), 2), round(p99, 2))


def measure_spill(url: str | None, waiting: int) -> SpillCost:
    """A look at a queue that one GPU would take a day for: SQLite without a URL, or a database there."""
    with TemporaryDirectory() as folder, bench.open_databases(url, Path(folder), ("spill",)) as databases:
        database, keys = databases[0], DataKeys(FileKeyring(Path(folder) / "keys"))
        migrate(database)
        spiller = _open_spiller(database, keys)
        bench.fill_queue(database, Sealer(keys), waiting, time.time() - 1.0)
        started, cpu_started = time.perf_counter(), time.process_time()
        left = spiller.look()
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
        return SpillCost(waiting, left, round(seconds, 3), round(cpu_seconds, 3))


def open_router(database: Database) -> Router:
    settings = RoutingSettings()
    router = Router(RoomyProvider(), Breaker(database, "bench", settings), settings, gpus=1)
    router.refresh(Backlog((), None))
    return router


def _open_spiller(database: Database, keys: DataKeys) -> Spiller:
    tenants = open_tenants(database)
    for number in range(bench.TENANTS):
        tenants.add(Tenant(TenantId(f"tenant-{number}"), managed=ALLOWED))
    queue = open_queue(database, keys, QueueSettings())
    return Spiller(open_router(database), queue, open_book(database, keys), tenants)


def _arrival(wait_seconds: float) -> Arrival:
    spec = VideoSpec(model=bench.MODEL, prompt="a red ball", width=1280, height=720, seconds=5, fps=16)
    return Arrival(ALLOWED, spec, StageSeconds(denoise=10.0), 90.0, wait_seconds)


def _time_choices(router: Router, arrival: Arrival, backlog: Backlog, choices: int) -> list[float]:
    """Microseconds of one choice, in samples of a hundred."""

    def sample(choose: Callable[[Arrival, Backlog], object]) -> float:
        # A choice waits for nothing: CPU time is its time, whatever else the machine does.
        started = time.thread_time()
        for _ in range(_CHOICES_A_SAMPLE):
            choose(arrival, backlog)
        return (time.thread_time() - started) * 1e6 / _CHOICES_A_SAMPLE

    return [sample(router.choose) for _ in range(max(choices // _CHOICES_A_SAMPLE, 2))]
