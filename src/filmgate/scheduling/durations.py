"""Histograms of durations: written with the transitions that they measure, read by the metrics."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict

import sqlalchemy as sa

from filmgate.database import Database
from filmgate.database.schema import durations
from filmgate.database.upserts import add_up
from filmgate.jobs import Route, StageSeconds, TenantId
from filmgate.scheduling.records import DURATION_BOUNDS, Example, Histogram, Series
from filmgate.scheduling.rows import Row

WAIT, TOTAL, MODEL_LOAD, COLD_START = "wait", "total", "model_load", "cold_start"
# How long the histograms of a version are kept without a new observation.
KEEP_SECONDS = 100 * 86400.0
# Older observations are no exemplars: the trace may be gone.
_EXAMPLE_SECONDS = 3600.0
_VERSION = ("kind", "model", "version", "route")
_NEWEST = ("seen_at", "trace_id", "example_seconds")
_TENANTS = sa.select(sa.func.count(sa.distinct(durations.c.tenant_id))).where(durations.c.tenant_id != "")


def observe(
    connection: sa.Connection, series: Series, seconds: float, now: float, trace_id: str | None = None
) -> None:
    """Add a duration to its histogram, with the trace that shows it."""
    bucket = bisect_left(DURATION_BOUNDS, seconds)
    values = asdict(series) | {"bucket": bucket, "observations": 1, "seconds": seconds}
    values |= dict(zip(_NEWEST, (now, trace_id, seconds), strict=True))
    add_up(connection, durations, values, "observations", "seconds", newest=_NEWEST)


def observe_wait(connection: sa.Connection, row: Row, version: str, now: float) -> None:
    """The wait of a job until its first lease, which a worker with this version of the model has taken."""
    series = Series(WAIT, row["model"], version, Route(row["route"]), TenantId(row["tenant_id"]))
    observe(connection, series, now - row["created_at"], now, row["trace_id"])


def observe_completion(connection: sa.Connection, row: Row, measured: StageSeconds, now: float) -> None:
    """The whole job and each stage it had. Stages are not kept per tenant."""
    model, version, route = row["model"], row["version"] or "", Route(row["route"])
    series = Series(TOTAL, model, version, route, TenantId(row["tenant_id"]))
    observe(connection, series, now - row["created_at"], now, row["trace_id"])
    for stage, seconds in asdict(measured).items():
        if seconds > 0:
            observe(connection, Series(stage, model, version, route), seconds, now, row["trace_id"])


def record_start(database: Database, kind: str, model: str, version: str, seconds: float) -> None:
    """A model load or a cold start of a worker."""
    with database.write(is_durable=False) as connection:
        observe(connection, Series(kind, model, version), seconds, database.now(connection))


def read_histograms(connection: sa.Connection, now: float, max_tenants: int) -> Sequence[Histogram]:
    """Every histogram, in the order of its series; summed over tenants if there are more than these."""
    is_summed = connection.execute(_TENANTS).scalar_one() > max_tenants
    names = (*_VERSION, "bucket") if is_summed else (*_VERSION, "bucket", "tenant_id")
    keys = [durations.c[name] for name in names]
    sums = [sa.func.sum(durations.c[name]).label(name) for name in ("observations", "seconds")]
    grouped = sa.select(*keys, *sums).group_by(*keys)
    recent = (
        sa.select(*keys, *(durations.c[name] for name in _NEWEST))
        .where(durations.c.seen_at > now - _EXAMPLE_SECONDS, durations.c.trace_id.is_not(None))
        .order_by(durations.c.seen_at)
    )
    counts: defaultdict[Series, list[int]] = defaultdict(lambda: [0] * (len(DURATION_BOUNDS) + 1))
    seconds: defaultdict[Series, float] = defaultdict(float)
    examples: defaultdict[Series, dict[int, Example]] = defaultdict(dict)
    for row in connection.execute(grouped).mappings():
        series = _to_series(row)
        counts[series][row["bucket"]] = int(row["observations"])
        seconds[series] += row["seconds"]
    for row in connection.execute(recent).mappings():
        example = Example(row["trace_id"], row["example_seconds"], row["seen_at"])
        examples[_to_series(row)][row["bucket"]] = example
    return [
        Histogram(series, tuple(counts[series]), seconds[series], examples[series])
        for series in sorted(counts)
    ]


def _to_series(row: sa.RowMapping) -> Series:
    tenant_id = TenantId(row.get("tenant_id", ""))
    return Series(row["kind"], row["model"], row["version"], Route(row["route"]), tenant_id)


def delete_old(database: Database) -> None:
    """Delete the histograms of versions without an observation for KEEP_SECONDS. Idempotent.

    All tenants together: a sum over tenants that shrinks would look like a restart to Prometheus.
    """
    newer = durations.alias()
    is_same = sa.and_(*(newer.c[name] == durations.c[name] for name in _VERSION))
    with database.write(is_durable=False) as connection:
        is_new = newer.c.seen_at >= database.now(connection) - KEEP_SECONDS
        connection.execute(sa.delete(durations).where(sa.not_(sa.exists().where(is_same, is_new))))


def merge(histograms: Iterable[Histogram], *labels: str) -> list[Histogram]:
    """Sum the histograms over everything but these fields of their series."""
    sums: dict[Series, Histogram] = {}
    for histogram in histograms:
        kept = {name: value for name, value in asdict(histogram.series).items() if name in labels}
        series = Series(**kept)
        before = sums.get(series)
        sums[series] = (
            Histogram(series, histogram.counts, histogram.seconds, histogram.examples)
            if before is None
            else Histogram(
                series,
                tuple(a + b for a, b in zip(before.counts, histogram.counts, strict=True)),
                before.seconds + histogram.seconds,
                {**before.examples, **histogram.examples},
            )
        )
    return [sums[series] for series in sorted(sums)]
