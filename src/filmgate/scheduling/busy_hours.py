"""How busy our own GPUs were, hour by hour, from the jobs in the database."""

import math

import sqlalchemy as sa

from filmgate.database import Database
from filmgate.database.schema import jobs, workers
from filmgate.jobs import Route

HOUR = 3600.0


def busy_hours(database: Database, days: int = 7) -> list[float]:
    """The share of each hour that the GPUs of the living workers spent on jobs; empty without jobs.

    The hours start with the first job of the last `days`. Deleted jobs are not in it.
    """
    with database.read() as connection:
        now = database.now(connection)
        spans = connection.execute(
            sa.select(jobs.c.started_at, sa.func.coalesce(jobs.c.finished_at, now)).where(
                jobs.c.route == Route.GPU.value,
                jobs.c.started_at.is_not(None),
                sa.func.coalesce(jobs.c.finished_at, now) > now - days * 24 * HOUR,
            )
        ).all()
        alive = sa.select(sa.func.count()).where(workers.c.route == Route.GPU.value)
        gpus = max(1, connection.execute(alive).scalar_one())
    return shares(sorted((float(start), float(end)) for start, end in spans), now, gpus, days)


def shares(spans: list[tuple[float, float]], now: float, gpus: int, days: int) -> list[float]:
    """The busy share of each hour up to `now`."""
    if not spans:
        return []
    first = max(spans[0][0], now - days * 24 * HOUR)
    hours = max(1, math.ceil((now - first) / HOUR))
    begin = now - hours * HOUR
    busy = [0.0] * hours
    for start, end in spans:
        low, high = max(start, begin), min(end, now)
        for hour in range(int((low - begin) / HOUR), min(hours, int((high - begin) / HOUR) + 1)):
            from_, until = begin + hour * HOUR, begin + (hour + 1) * HOUR
            busy[hour] += max(0.0, min(high, until) - max(low, from_))
    return [min(1.0, seconds / (HOUR * gpus)) for seconds in busy]
