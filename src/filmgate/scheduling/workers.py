"""Live workers: each sends heartbeats to one table and announces the models it serves.

A worker is alive until it has been silent for TIMEOUT_SECONDS. Times are on the database's steady clock.
"""

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass

import sqlalchemy as sa
from pydantic import TypeAdapter, ValidationError

from filmgate.database import Database
from filmgate.database.records import read_record
from filmgate.database.schema import model_cards, workers
from filmgate.database.upserts import insert_into
from filmgate.errors import WorkerNotFound
from filmgate.jobs import Route, TenantId, WorkerId
from filmgate.models.cards import ModelCard, ServedModels
from filmgate.scheduling.history import DeviceSeconds, record_device
from filmgate.telemetry.logs import Log

log = Log("workers")

HEARTBEAT_SECONDS = 5.0
# Six heartbeats: a short database outage does not make every model disappear.
TIMEOUT_SECONDS = 30.0
# Rows are kept this long, so that a worker still gets its drain request after an outage of the database.
_KEPT_SECONDS = 3600.0
_CARDS = TypeAdapter(list[ModelCard])
_JSON_COLUMNS = ("models", "tenants", "gpu", "device_seconds")


@dataclass(frozen=True, slots=True)
class GpuStatus:
    """The last reading of a worker's GPU. None: not reported, or the driver has lost the GPU."""

    is_healthy: bool
    temperature_celsius: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A live worker. `capacity` is how many jobs it runs in parallel: 1 per GPU, more for a managed worker.

    `tenants` are the only tenants it serves; a shared worker has none. `speed` is below 1 while heat slows
    its GPU. `gpu` is None on a CPU, and for a managed worker, which has no `device_seconds` either.
    """

    worker_id: WorkerId
    route: Route
    models: tuple[str, ...]
    device: str = ""
    capacity: int = 1
    tenants: tuple[TenantId, ...] = ()
    is_draining: bool = False
    speed: float = 1.0
    gpu: GpuStatus | None = None
    device_seconds: DeviceSeconds | None = None


class WorkerRegistry:
    """The table of live workers."""

    def __init__(self, database: Database) -> None:
        self._database = database
        # What the history of devices contains of the workers of this process.
        self._recorded: dict[WorkerId, DeviceSeconds] = {}
        self._kept_cards: tuple[ModelCard, ...] = ()

    def heartbeat(self, status: WorkerStatus, cards: Iterable[ModelCard] = ()) -> bool:
        """Record that the worker is alive and what it serves. Deletes the rows of workers that are gone.

        Returns whether an operator asked the worker to drain and it does not drain yet.
        """
        cards = tuple(cards)
        row = {
            "id": status.worker_id,
            "route": status.route,
            "models": json.dumps(status.models),
            "device": status.device,
            "capacity": status.capacity,
            "tenants": json.dumps(status.tenants),
            "speed": status.speed,
            "gpu": json.dumps(asdict(status.gpu)) if status.gpu else None,
            "device_seconds": json.dumps(asdict(status.device_seconds)) if status.device_seconds else None,
            "cards": _to_json(cards),
        }
        with self._database.write(is_durable=False) as connection:
            now = self._database.steady_now(connection)
            is_gone = sa.not_(workers.c.seen_at.between(now - _KEPT_SECONDS, now + TIMEOUT_SECONDS))
            connection.execute(sa.delete(workers).where(is_gone, workers.c.id != status.worker_id))
            row |= {"seen_at": now}
            insert = insert_into(connection, workers).values(row | {"is_draining": status.is_draining})
            # A drain is final: a heartbeat that was sent before the request does not clear it.
            row |= {"is_draining": sa.or_(workers.c.is_draining, insert.excluded.is_draining)}
            upsert = insert.on_conflict_do_update(index_elements=["id"], set_=row)
            is_draining = bool(connection.execute(upsert.returning(workers.c.is_draining)).scalar_one())
            if (seconds := status.device_seconds) is not None:
                passed = seconds.since(self._recorded.get(status.worker_id, DeviceSeconds()))
                record_device(connection, status.worker_id, passed, self._database.now(connection))
            if cards != self._kept_cards:
                _keep_cards(connection, cards)
        self._kept_cards = cards
        if seconds is not None:
            self._recorded[status.worker_id] = seconds
        return is_draining and not status.is_draining

    def drain(self, worker_id: WorkerId) -> WorkerStatus:
        """Ask a live worker to drain: its next `heartbeat` returns True. Raises WorkerNotFound."""
        own = workers.c.id == worker_id
        with self._database.write() as connection:
            now = self._database.steady_now(connection)
            connection.execute(sa.update(workers).where(own, _is_alive(now)).values(is_draining=True))
            found = [worker for worker in read_alive(connection, now) if worker.worker_id == worker_id]
        if not found:
            raise WorkerNotFound(f"no live worker has the id {worker_id[:80]!r}", option="worker_id")
        return found[0]

    def leave(self, worker_id: WorkerId) -> None:
        """Remove a worker that has drained. Idempotent."""
        with self._database.write(is_durable=False) as connection:
            connection.execute(sa.delete(workers).where(workers.c.id == worker_id))

    def list_alive(self) -> Sequence[WorkerStatus]:
        with self._database.read() as connection:
            return read_alive(connection, self._database.steady_now(connection))

    def cards(self) -> Sequence[ModelCard]:
        """One card per model that live workers serve, by name; the most recent heartbeat wins."""
        with self._database.read() as connection:
            now = self._database.steady_now(connection)
            rows = connection.execute(_select_alive(now).order_by(workers.c.seen_at)).all()
        found = {card.name: card for row in rows for card in _read_cards(row.id, row.cards)}
        return [found[name] for name in sorted(found)]

    def served(self, cold: Collection[str] = ()) -> ServedModels:
        """The models that live workers serve. Managed workers count only where no GPU worker is alive.

        The models in `cold` (`*`: all) keep the card of the last worker that served them.
        """
        alive = [worker for worker in self.list_alive() if not worker.is_draining]
        on_gpu = {model for worker in alive if worker.route is Route.GPU for model in worker.models}
        names = on_gpu or {model for worker in alive for model in worker.models}
        with self._database.read() as connection:
            kept = connection.execute(sa.select(model_cards).order_by(model_cards.c.name)).all()
        waiting = [row for row in kept if row.name in cold or "*" in cold]
        cards = {card.name: card for row in waiting for card in _read_cards(row.name, row.card)}
        cards |= {card.name: card for card in self.cards()}
        absent = frozenset(row.name for row in kept) - names
        return ServedModels(tuple(cards.values()), frozenset(names), absent, frozenset(cold))


def read_alive(connection: sa.Connection, steady_now: float) -> Sequence[WorkerStatus]:
    """Every live worker, ordered by id."""
    rows = connection.execute(_select_alive(steady_now).order_by(workers.c.id)).mappings()
    return [_to_status(row) for row in rows]


def _to_status(row: sa.RowMapping) -> WorkerStatus:
    parsed = {name: json.loads(row[name]) for name in _JSON_COLUMNS if row[name] is not None}
    return read_record(WorkerStatus, {**row, "worker_id": row["id"], **parsed})


def _select_alive(steady_now: float) -> sa.Select[tuple[object, ...]]:
    return sa.select(workers).where(_is_alive(steady_now))


def _is_alive(steady_now: float) -> sa.ColumnElement[bool]:
    # A time in the future was written before the host, and with it the steady clock, was restarted.
    return workers.c.seen_at.between(steady_now - TIMEOUT_SECONDS, steady_now + TIMEOUT_SECONDS)


def _keep_cards(connection: sa.Connection, cards: Iterable[ModelCard]) -> None:
    for card in sorted(cards, key=lambda card: card.name):  # two workers lock the rows in one order
        insert = insert_into(connection, model_cards).values(name=card.name, card=_to_json([card]))
        new = {"card": insert.excluded.card}
        connection.execute(insert.on_conflict_do_update(index_elements=["name"], set_=new))


def _to_json(cards: Iterable[ModelCard]) -> str:
    return json.dumps([asdict(card) for card in cards], default=sorted)


def _read_cards(owner: str, text: str) -> list[ModelCard]:
    try:
        return _CARDS.validate_json(text)
    except ValidationError:
        # Of a worker of another version: its models are not listed here.
        log.warning("the model cards of a worker cannot be read", reason=owner)
        return []
