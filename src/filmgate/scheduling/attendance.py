"""Which workers are there: those that ask for work, and those whose jobs still beat."""

import json
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from filmgate.database.schema import attendance, jobs
from filmgate.jobs import Route, WorkerId
from filmgate.scheduling.base import Offer, Presence

# A busy worker asks again within a job; an idle one twice a second. Writing that down now and then is enough.
_MARK_SECONDS = 2.0
_FORGET_SECONDS = 3600.0

_SEEN = sa.select(attendance)
_BEATS = (
    sa.select(jobs.c.worker_id, sa.func.max(jobs.c.wake_set_at).label("beat_at"))
    .where(sa.text("jobs.wake_at IS NOT NULL AND jobs.state = 'running'"))
    .group_by(jobs.c.worker_id)
)


class Attendance:
    """Writes down that a worker asked for work, in the transaction in which it asks."""

    def __init__(self) -> None:
        self._marked: dict[WorkerId, float] = {}

    def mark(self, connection: sa.Connection, offer: Offer, steady_now: float) -> None:
        if 0 <= steady_now - self._marked.get(offer.worker_id, -_MARK_SECONDS) < _MARK_SECONDS:
            return
        self._marked[offer.worker_id] = steady_now
        insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
        statement = insert(attendance).values(
            worker_id=offer.worker_id,
            route=offer.route,
            models=json.dumps(offer.models),
            seen_at=steady_now,
        )
        news = {name: statement.excluded[name] for name in ("route", "models", "seen_at")}
        connection.execute(statement.on_conflict_do_update(index_elements=["worker_id"], set_=news))
        # Long gone, or of the time before a reboot, which lies in the future of this clock.
        age = steady_now - attendance.c.seen_at
        connection.execute(sa.delete(attendance).where(sa.not_(age.between(-_MARK_SECONDS, _FORGET_SECONDS))))


def list_present(connection: sa.Connection, steady_now: float) -> Sequence[Presence]:
    """Every worker of the last hour and how long it has been silent."""
    beats = {row.worker_id: row.beat_at for row in connection.execute(_BEATS)}
    present = []
    for row in connection.execute(_SEEN):
        latest = max(row.seen_at, beats.get(row.worker_id, row.seen_at))
        models = tuple(json.loads(row.models))
        silent = abs(steady_now - latest)
        present.append(Presence(WorkerId(row.worker_id), Route(row.route), models, silent))
    return present
