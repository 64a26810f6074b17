"""Counts of jobs that met or missed their objective, written with the end of each job.

Each job is counted twice: in the 5 minutes in which it ended, for attainment and burn rates, and in a total
that only grows, for Prometheus. Both outlive the job.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from filmgate.database import Database
from filmgate.database.schema import slo_counts
from filmgate.database.upserts import add_up
from filmgate.jobs import TenantId
from filmgate.slo.objectives import DEFAULT_CLASS

INTERVAL_SECONDS = 300
# Intervals are kept for longer than any window.
KEEP_SECONDS = 100 * 86400.0
_TOTAL = 0


@dataclass(frozen=True, slots=True)
class SloCount:
    """Ended jobs of one tenant and class in the interval that starts at `at`; 0 is the total.

    `allowed` is how many of them may be late: each job adds 1 - its target.
    """

    at: int
    tenant_id: TenantId
    name: str
    jobs: int
    late: int
    allowed: float


def count_job(connection: sa.Connection, row: Any, *, is_late: bool, now: float) -> None:
    """Count a finished job. Cancelled jobs are not counted; failed jobs are late."""
    own = {"tenant_id": row["tenant_id"], "class": row["slo_class"] or DEFAULT_CLASS}
    sums = {"jobs": 1, "late": int(is_late), "allowed": 1 - row["slo_target"]}
    interval = int(now // INTERVAL_SECONDS) * INTERVAL_SECONDS
    add_up(connection, slo_counts, [own | sums | {"interval_at": at} for at in (_TOTAL, interval)], *sums)


def read_totals(connection: sa.Connection) -> Sequence[SloCount]:
    """The counts since the database exists, by tenant and class."""
    return _read(connection, slo_counts.c.interval_at == _TOTAL)


def read_since(database: Database, seconds: float) -> tuple[Sequence[SloCount], float]:
    """The counts of the intervals of the last seconds, and the database's time."""
    with database.read() as connection:
        now = database.now(connection)
        return _read(connection, slo_counts.c.interval_at > now - seconds), now


def _read(connection: sa.Connection, condition: sa.ColumnElement[bool]) -> Sequence[SloCount]:
    place = (slo_counts.c.tenant_id, slo_counts.c["class"], slo_counts.c.interval_at)
    rows = connection.execute(sa.select(slo_counts).where(condition).order_by(*place)).mappings()
    return [
        SloCount(
            row["interval_at"],
            TenantId(row["tenant_id"]),
            row["class"],
            row["jobs"],
            row["late"],
            row["allowed"],
        )
        for row in rows
    ]


def delete_old(database: Database) -> None:
    """Delete intervals that no window reaches. Idempotent."""
    with database.write(is_durable=False) as connection:
        cutoff = database.now(connection) - KEEP_SECONDS
        at = slo_counts.c.interval_at
        connection.execute(sa.delete(slo_counts).where(at > _TOTAL, at < cutoff))
