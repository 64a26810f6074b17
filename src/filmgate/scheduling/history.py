"""The history by 5 minutes and by hour: finished jobs with latencies and costs, busy and idle devices.

Each job is counted twice with its end, in the transaction that ends it: in the row of its 5 minutes and in
the row of its hour. The rows outlive the job. Latencies are a histogram whose bucket is part of the key, so
that counting a job is one addition (docs/adr/0091-the-history-of-the-service-is-counted-per-hour.md).

A worker counts the seconds of its device since its start. Each of its heartbeats adds what has passed since
the one before to the intervals in which it passed. Every row belongs to one worker, so heartbeats do not wait
for each other.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from filmgate.database import Database
from filmgate.database.schema import device_history, job_history
from filmgate.database.upserts import add_up
from filmgate.jobs import Reason, Route, TenantId, WorkerId
from filmgate.scheduling.fair_share import EndOfJob
from filmgate.scheduling.rows import Row

FINE_SECONDS, COARSE_SECONDS = 300, 3600
# How long the rows of each width are kept.
KEEP_SECONDS = {FINE_SECONDS: 2 * 86400, COARSE_SECONDS: 100 * 86400}
# The upper bound of bucket n is FIRST_SECONDS * GROWTH ** n: a percentile is at most 19 % off.
FIRST_SECONDS = 0.05
GROWTH = 2**0.25
# What the caller caused is not a failure of the service.
NOT_COUNTED = (Reason.CANCELLED, Reason.INVALID_REQUEST)
GROUPS = {"tenant": "tenant_id", "model": "model", "route": "route", "reason": "reason"}

_JOB_SUMS = ("jobs", "late", "seconds", "gpu_seconds", "provider_usd")
_DEVICE_SUMS = ("busy_seconds", "idle_seconds", "gap_seconds", "gaps")


@dataclass(frozen=True, slots=True)
class Window:
    """A span of time, cut into periods of `period_seconds` (0: one period); read from rows of this width."""

    start: int
    end: int
    period_seconds: int
    width_seconds: int

    @classmethod
    def around(cls, start: float, end: float, period_seconds: int, now: float) -> "Window":
        """The span, rounded out to whole periods; of rows as fine as are still kept."""
        is_recent = start >= now - KEEP_SECONDS[FINE_SECONDS]
        is_fine = is_recent and period_seconds < COARSE_SECONDS
        width = FINE_SECONDS if is_fine else COARSE_SECONDS
        step = period_seconds or width
        begin = int(start // step) * step
        return cls(begin, max(math.ceil(end / step) * step, begin + step), period_seconds, width)

    @property
    def starts(self) -> range:
        """The start of every period."""
        return range(self.start, self.end, self.period_seconds or self.end - self.start)


@dataclass(frozen=True, slots=True)
class Latencies:
    """The seconds from acceptance to completion: jobs by bucket of the histogram, and their sum."""

    counts: tuple[tuple[int, int], ...] = ()
    seconds: float = 0.0

    @property
    def mean(self) -> float | None:
        jobs = sum(number for _, number in self.counts)
        return self.seconds / jobs if jobs else None

    def quantile(self, share: float) -> float | None:
        """Interpolated within its bucket."""
        rank, below = share * sum(number for _, number in self.counts), 0
        for bucket, number in self.counts:
            if below + number >= rank > 0:
                low = FIRST_SECONDS * GROWTH ** (bucket - 1) if bucket else 0.0
                return low + (FIRST_SECONDS * GROWTH**bucket - low) * (rank - below) / number
            below += number
        return None


@dataclass(frozen=True, slots=True)
class Ended:
    """Jobs that ended in a period; `group` has their values of the names in `group_by`: tenant, model ...

    `judged` counts jobs that have an objective: all except cancelled and invalid ones. `late` counts the
    judged jobs that failed or missed their objective. GPU-seconds do not include providers.
    """

    period: int
    group: dict[str, str]
    completed: int
    failed: int
    cancelled: int
    judged: int
    late: int
    gpu_seconds: float
    provider_usd: float
    latencies: Latencies


@dataclass(frozen=True, slots=True)
class DeviceSeconds:
    """How long a worker's device had a job and had none, since the worker was ready.

    `gap` is the idle time between two clips while the next job was already waiting, and `gaps` the number of
    such periods.
    """

    busy: float = 0.0
    idle: float = 0.0
    gap: float = 0.0
    gaps: int = 0

    def since(self, before: "DeviceSeconds") -> "DeviceSeconds":
        """What has passed since an earlier reading of the same process."""
        return DeviceSeconds(
            self.busy - before.busy, self.idle - before.idle, self.gap - before.gap, self.gaps - before.gaps
        )


def record_end(connection: sa.Connection, row: Row, end: EndOfJob) -> None:
    """Count a finished job in its 5 minutes and in its hour."""
    seconds = max(end.at - row["created_at"], 0.0)
    counted = {name: row[name] for name in ("tenant_id", "route", "model")} | {
        "reason": end.reason or "",
        "bucket": bucket_of(seconds),
        "jobs": 1,
        "late": int(end.is_late),
        "seconds": seconds,
        "gpu_seconds": 0.0 if row["route"] == Route.MANAGED else end.gpu_seconds,
        "provider_usd": end.provider_usd,
    }
    rows = [
        counted | {"width_seconds": width, "interval_at": int(end.at // width) * width}
        for width in KEEP_SECONDS
    ]
    add_up(connection, job_history, rows, *_JOB_SUMS)


def bucket_of(seconds: float) -> int:
    """The index of the first bound that is not below this many seconds."""
    return max(math.ceil(math.log(seconds / FIRST_SECONDS, GROWTH) - 1e-9), 0) if seconds > 0 else 0


def record_device(connection: sa.Connection, worker_id: WorkerId, passed: DeviceSeconds, now: float) -> None:
    """Add the seconds that have passed until now to their intervals."""
    rows = [
        {"width_seconds": width, "worker_id": worker_id, **row}
        for width in KEEP_SECONDS
        for row in _spread(passed, now, width)
    ]
    if rows:
        add_up(connection, device_history, rows, *_DEVICE_SUMS)


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


class History:
    """Reads the history of an installation."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def read(
        self, window: Window, group_by: Sequence[str] = (), tenant_id: TenantId | None = None
    ) -> list[Ended]:
        """The jobs that ended in a window, by period and group; a period without jobs is left out.

        `group_by` are names in GROUPS. With `tenant_id`, only the jobs of this tenant.
        """
        at, period = job_history.c.interval_at, window.period_seconds
        start = at - at % period if period else sa.literal(window.start)
        groups = [job_history.c[GROUPS[name]].label(name) for name in group_by]
        keys = [start.label("period"), *groups, job_history.c.reason.label("ended"), job_history.c.bucket]
        sums = [sa.func.sum(job_history.c[name]).label(name) for name in _JOB_SUMS]
        statement = sa.select(*keys, *sums).where(
            job_history.c.width_seconds == window.width_seconds, at >= window.start, at < window.end
        )
        if tenant_id is not None:
            statement = statement.where(job_history.c.tenant_id == tenant_id)
        statement = statement.group_by(*(sa.text(str(number + 1)) for number in range(len(keys))))
        with self._database.read() as connection:
            rows = connection.execute(statement).mappings().all()
        found: dict[tuple[int, tuple[str, ...]], list[sa.RowMapping]] = {}
        for row in rows:
            found.setdefault((row["period"], tuple(row[name] for name in group_by)), []).append(row)
        return [_to_ended(found[key], group_by) for key in sorted(found)]

    def read_devices(self, window: Window) -> dict[int, DeviceSeconds]:
        """The seconds of all devices by period, in order; a period without a worker is left out."""
        at, period = device_history.c.interval_at, window.period_seconds
        start = at - at % period if period else sa.literal(window.start)
        sums = [sa.func.sum(device_history.c[name]) for name in _DEVICE_SUMS]
        is_within = sa.and_(at >= window.start, at < window.end)
        statement = (
            sa.select(start.label("period"), *sums)
            .where(device_history.c.width_seconds == window.width_seconds, is_within)
            .group_by(sa.text("1"))
            .order_by(sa.text("1"))
        )
        with self._database.read() as connection:
            rows = connection.execute(statement).all()
        return {
            int(begin): DeviceSeconds(busy, idle, gap, int(gaps)) for begin, busy, idle, gap, gaps in rows
        }

    def busy_shares(self, days: int) -> list[float]:
        """The share of each hour in which devices had a job, over the last `days`.

        An hour without a worker is left out.
        """
        with self._database.read() as connection:
            now = self._database.now(connection)
        window = Window.around(now - days * 86400, now, COARSE_SECONDS, now)
        hours = self.read_devices(window).values()
        return [hour.busy / (hour.busy + hour.idle) for hour in hours if hour.busy + hour.idle > 0]

    def delete_old(self) -> None:
        """Delete rows that are older than their kind is kept. Idempotent."""
        with self._database.write(is_durable=False) as connection:
            now = self._database.now(connection)
            for table in (job_history, device_history):
                for width, seconds in KEEP_SECONDS.items():
                    is_old = sa.and_(table.c.width_seconds == width, table.c.interval_at < now - seconds)
                    connection.execute(sa.delete(table).where(is_old))


def _to_ended(rows: Sequence[sa.RowMapping], group_by: Sequence[str]) -> Ended:
    done = [row for row in rows if not row["ended"]]
    cancelled = _jobs(row for row in rows if row["ended"] == Reason.CANCELLED)
    counts = sorted((row["bucket"], int(row["jobs"])) for row in done)
    return Ended(
        period=int(rows[0]["period"]),
        group={name: rows[0][name] for name in group_by},
        completed=_jobs(done),
        failed=_jobs(rows) - _jobs(done) - cancelled,
        cancelled=cancelled,
        judged=_jobs(row for row in rows if row["ended"] not in NOT_COUNTED),
        late=sum(int(row["late"]) for row in rows),
        gpu_seconds=sum(row["gpu_seconds"] for row in rows),
        provider_usd=sum(row["provider_usd"] for row in rows),
        latencies=Latencies(tuple(counts), sum(row["seconds"] for row in done)),
    )


def _jobs(rows: Iterable[sa.RowMapping]) -> int:
    return sum(int(row["jobs"]) for row in rows)
