"""Where queued jobs stand: their tenant's own jobs before them, and those others will start meanwhile."""

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeAlias

import sqlalchemy as sa

from filmgate.database.schema import accounts, jobs, loads
from filmgate.jobs import JobId, JobState
from filmgate.scheduling.claims import IS_READY
from filmgate.scheduling.rows import Row

MOST_COUNTED = 1000

# A tenant's jobs of one route and model are one line: they start in the order of (deadline, age).
LineKey: TypeAlias = tuple[str, str, str]
Place: TypeAlias = tuple[float, int]
_LINE_COLUMNS = ("tenant_id", "route", "model")
_WAITING = (
    sa.select(
        accounts.c.tenant_id,
        accounts.c.weight,
        accounts.c.virtual_time,
        loads.c.route,
        loads.c.model,
        loads.c.jobs,
        loads.c.gpu_seconds,
    )
    .join(loads, loads.c.tenant_id == accounts.c.tenant_id)
    .where(loads.c.state == JobState.QUEUED.value, loads.c.jobs > 0)
)


@dataclass(frozen=True, slots=True)
class _Line:
    """The first jobs of a line: their places, and the GPU-seconds before each."""

    places: Sequence[Place]
    seconds_before: Sequence[float]

    def ahead(self, row: Row) -> tuple[int, float]:
        """How many jobs are before this one, and their GPU-seconds."""
        count = bisect_left(self.places, _place_of(row))
        return count, self.seconds_before[count]


def find_position(connection: sa.Connection, row: Row) -> int | None:
    """The position of one job, None unless it is queued; the database does the counting."""
    if row["state"] != JobState.QUEUED:
        return None
    ahead = _head_of(_line_of(row), _place_of(row)).subquery()
    count, seconds = connection.execute(
        sa.select(sa.func.count(), sa.func.sum(ahead.c.predicted_gpu_seconds))
    ).one()
    others_ahead = _others_ahead(connection.execute(_WAITING).all(), row, seconds or 0.0)
    return 1 + int(count) + others_ahead


def find_positions(connection: sa.Connection, rows: Iterable[Row]) -> Mapping[JobId, int]:
    """The positions of those that are queued: two queries, however many jobs. Counting stops at 1,000."""
    queued = [row for row in rows if row["state"] == JobState.QUEUED]
    if not queued:
        return {}
    lines = _read_lines(connection, queued)
    waiting = connection.execute(_WAITING).all()
    positions = {}
    for row in queued:
        jobs_ahead, seconds_ahead = lines[_line_of(row)].ahead(row)
        positions[JobId(row["id"])] = 1 + jobs_ahead + _others_ahead(waiting, row, seconds_ahead)
    return positions


def _line_of(row: Row) -> LineKey:
    return row["tenant_id"], row["route"], row["model"]


def _place_of(row: Row) -> Place:
    return row["deadline_at"], row["seq"]


def _read_lines(connection: sa.Connection, queued: Sequence[Row]) -> dict[LineKey, _Line]:
    """Every line these jobs stand in, as far as the last of them."""
    last: dict[LineKey, Place] = {}
    for row in queued:
        key, place = _line_of(row), _place_of(row)
        last[key] = max(last.get(key, place), place)
    heads = [sa.select(_head_of(key, place).subquery()) for key, place in last.items()]
    found: dict[LineKey, list[tuple[float, int, float]]] = {key: [] for key in last}
    for tenant_id, route, model, *job in connection.execute(sa.union_all(*heads)):
        found[tenant_id, route, model].append((job[0], job[1], job[2]))
    return {key: _to_line(ahead) for key, ahead in found.items()}


def _head_of(key: LineKey, last: Place) -> sa.Select[Any]:
    own = [jobs.c[name] == value for name, value in zip(_LINE_COLUMNS, key, strict=True)]
    return (
        sa.select(*(jobs.c[name] for name in (*_LINE_COLUMNS, "deadline_at", "seq", "predicted_gpu_seconds")))
        .where(*own, IS_READY, sa.tuple_(jobs.c.deadline_at, jobs.c.seq) < sa.tuple_(*last))
        .order_by(jobs.c.deadline_at, jobs.c.seq)
        .limit(MOST_COUNTED)
    )


def _to_line(ahead: list[tuple[float, int, float]]) -> _Line:
    # A union of ordered parts promises no order of its own.
    ahead.sort()
    return _Line([job[:2] for job in ahead], [0.0, *accumulate(job[2] for job in ahead)])


def _others_ahead(waiting: Sequence[Any], row: Row, seconds_ahead: float) -> int:
    """Jobs that other tenants will start before this one's virtual time comes."""
    shares = {r.tenant_id: r for r in waiting if (r.route, r.model) == (row["route"], row["model"])}
    if (own := shares.pop(row["tenant_id"], None)) is None:
        return 0
    start = own.virtual_time + seconds_ahead / own.weight
    return sum(
        min(other.jobs, math.ceil(max(0.0, start - other.virtual_time) * other.weight / cost))
        for other in shares.values()
        if (cost := other.gpu_seconds / other.jobs) > 0
    )
