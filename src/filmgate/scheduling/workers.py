"""The models that live workers serve: announced by each worker, gone soon after it is.

A model card in a file says what an operator promises; a card here says what a worker has loaded.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict

import sqlalchemy as sa
from pydantic import TypeAdapter, ValidationError

from filmgate.database import Database
from filmgate.database.schema import workers
from filmgate.jobs import WorkerId
from filmgate.models.cards import ModelCard
from filmgate.telemetry.logs import Log

log = Log("roster")

BEAT_SECONDS = 5.0
# Six beats: a database that is away for a moment does not make every model vanish.
GONE_SECONDS = 30.0
_CARDS = TypeAdapter(list[ModelCard])
_OWN = workers.c.id == sa.bindparam("own")


class Roster:
    """Who is alive, on the clock no one can step."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def announce(self, worker_id: WorkerId, device: str, cards: Iterable[ModelCard]) -> None:
        """Say that this worker lives and what it serves; the rows of the long gone are removed."""
        text = json.dumps([asdict(card) for card in cards], default=sorted)
        with self._database.write(is_durable=False) as connection:
            now = self._database.steady_now(connection)
            row = {"device": device, "cards": text, "seen_at": now}
            connection.execute(sa.delete(workers).where(_is_gone(now)))
            if not connection.execute(sa.update(workers).where(_OWN), row | {"own": worker_id}).rowcount:
                connection.execute(sa.insert(workers), row | {"id": worker_id})

    def leave(self, worker_id: WorkerId) -> None:
        """The worker has drained: what only it served cannot be asked for any more. Idempotent."""
        with self._database.write(is_durable=False) as connection:
            connection.execute(sa.delete(workers).where(_OWN), {"own": worker_id})

    def cards(self) -> Sequence[ModelCard]:
        """One card a model, in order of name; of two workers' cards that of the one seen last."""
        with self._database.read() as connection:
            now = self._database.steady_now(connection)
            alive = sa.select(workers).where(sa.not_(_is_gone(now))).order_by(workers.c.seen_at)
            rows = connection.execute(alive).all()
        found = {card.name: card for row in rows for card in _read(row.id, row.cards)}
        return [found[name] for name in sorted(found)]


def _is_gone(now: float) -> sa.ColumnElement[bool]:
    # A time ahead of the clock is one from before the host was started anew.
    return sa.or_(workers.c.seen_at < now - GONE_SECONDS, workers.c.seen_at > now + GONE_SECONDS)


def _read(worker_id: str, text: str) -> list[ModelCard]:
    try:
        return _CARDS.validate_json(text)
    except ValidationError:
        # A worker of another version: its models cannot be asked for here, everyone else's can.
        log.warning("a worker's model cards cannot be read", worker_id=worker_id)
        return []
