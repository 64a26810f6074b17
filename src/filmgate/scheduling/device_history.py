"""How long devices were busy and idle, by 5 minutes and by hour: written with the heartbeats of workers.

A worker counts seconds since its start; each heartbeat adds what has passed since the one before to the
intervals in which it passed. Every row belongs to one worker, so heartbeats do not wait for each other.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import sqlalchemy as sa

from filmgate.database import Database
from filmgate.database.schema import device_history
from filmgate.jobs import WorkerId
from filmgate.scheduling.fair_share import INSERTS, add_statement
from filmgate.scheduling.history import KEEP_SECONDS, Window

_SUMS = ("busy_seconds", "idle_seconds", "gap_seconds", "gaps")
_ADD = {dialect: add_statement(insert, device_history, *_SUMS) for dialect, insert in INSERTS.items()}


@dataclass(frozen=True, slots=True)
class DeviceSeconds:
    """How long a worker's device had a job and had none, since the worker was ready.

    `gap` of the idle seconds passed between two clips although the next job was waiting, in `gaps` gaps.
    """

    busy: float = 0.0
    idle: float = 0.0
    gap: float = 0.0
    gaps: int = 0

    def since(self, before: "DeviceSeconds") -> "DeviceSeconds":
        """What has passed since an earlier reading; everything, if the worker has started again since."""
        if self.busy < before.busy or self.idle < before.idle or self.gaps < before.gaps:
            return self
        return DeviceSeconds(
            self.busy - before.busy, self.idle - before.idle, self.gap - before.gap, self.gaps - before.gaps
        )


@dataclass(frozen=True, slots=True)
class DevicePeriod:
    """The seconds of all devices in one period."""

    period: int
    seconds: DeviceSeconds


def record_device(connection: sa.Connection, worker_id: WorkerId, passed: DeviceSeconds, now: float) -> None:
    """Add the seconds that have passed until now to their intervals."""
    rows = [
        {"width_seconds": width, "worker_id": worker_id, **row}
        for width in KEEP_SECONDS
        for row in _spread(passed, now, width)
    ]
    if rows:
        connection.execute(_ADD[connection.dialect.name], rows)


def _spread(passed: DeviceSeconds, now: float, width: int) -> Iterator[dict[str, float]]:
    """A device is either busy or idle: both together are the time that has passed.

    After an outage of the database that is more than one interval. The gaps count in the last one.
    """
    elapsed = passed.busy + passed.idle
    start = max(now - elapsed, now - KEEP_SECONDS[width])
    last = (math.ceil(now / width) - 1) * width
    for interval in range(int(start // width) * width, last + 1, width) if elapsed > 0 else ():
        share = (min(now, interval + width) - max(start, interval)) / elapsed
        is_last = interval == last
        yield {
            "interval_at": interval,
            "busy_seconds": passed.busy * share,
            "idle_seconds": passed.idle * share,
            "gap_seconds": passed.gap * is_last,
            "gaps": passed.gaps * is_last,
        }


class DeviceHistory:
    """Reads the history of the devices. `History.delete_old` deletes its old rows."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def read(self, window: Window) -> list[DevicePeriod]:
        """The seconds of all devices by period; a period without a worker is left out."""
        at, period = device_history.c.interval_at, window.period_seconds
        start = at - at % period if period else sa.literal(window.start)
        sums = [sa.func.sum(device_history.c[name]) for name in _SUMS]
        is_within = sa.and_(at >= window.start, at < window.end)
        statement = (
            sa.select(start.label("period"), *sums)
            .where(device_history.c.width_seconds == window.width_seconds, is_within)
            .group_by(sa.text("1"))
            .order_by(sa.text("1"))
        )
        with self._database.read() as connection:
            rows = connection.execute(statement).all()
        return [
            DevicePeriod(int(begin), DeviceSeconds(busy, idle, gap, int(gaps)))
            for begin, busy, idle, gap, gaps in rows
        ]
