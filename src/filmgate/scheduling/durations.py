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
_EXAMPLE = ("trace_id", "example_seconds", "example_at")


def observe(
    connection: sa.Connection, series: Series, seconds: float, example: Example | None = None
) -> None:
    """Add a duration to its histogram, with the trace that shows it."""
    bucket = bisect_left(DURATION_BOUNDS, seconds)
    values = asdict(series) | {"bucket": bucket, "observations": 1, "seconds": seconds}
    trace = (example.trace_id, example.seconds, example.at) if example is not None else (None,) * 3
    row = values | dict(zip(_EXAMPLE, trace, strict=True))
    add_up(connection, durations, row, "observations", "seconds", newest=_EXAMPLE)


def observe_wait(connection: sa.Connection, row: Row, version: str, now: float) -> None:
    """The wait of a job until its first lease, which a worker with this version of the model has taken."""
    series = Series(WAIT, row["model"], version, Route(row["route"]), TenantId(row["tenant_id"]))
    waited = now - row["created_at"]
    observe(connection, series, waited, Example(row["trace_id"], waited, now))


def observe_completion(connection: sa.Connection, row: Row, measured: StageSeconds, now: float) -> None:
    """The whole job and each stage it had. Stages are not kept per tenant."""
    model, version, route = row["model"], row["version"] or "", Route(row["route"])
    total, trace_id = now - row["created_at"], row["trace_id"]
    series = Series(TOTAL, model, version, route, TenantId(row["tenant_id"]))
    observe(connection, series, total, Example(trace_id, total, now))
    for stage, seconds in asdict(measured).items():
        if seconds > 0:
            example = Example(trace_id, seconds, now)
            observe(connection, Series(stage, model, version, route), seconds, example)


def record_start(database: Database, kind: str, model: str, version: str, seconds: float) -> None:
    """A model load or a cold start of a worker."""
    with database.write(is_durable=False) as connection:
        observe(connection, Series(kind, model, version), seconds)


def read_histograms(connection: sa.Connection) -> Sequence[Histogram]:
    """Every histogram, in the order of its series."""
    counts: defaultdict[Series, list[int]] = defaultdict(lambda: [0] * (len(DURATION_BOUNDS) + 1))
    seconds: defaultdict[Series, float] = defaultdict(float)
    examples: defaultdict[Series, dict[int, Example]] = defaultdict(dict)
    for row in connection.execute(sa.select(durations)):
        series = Series(row.kind, row.model, row.version, Route(row.route), TenantId(row.tenant_id))
        counts[series][row.bucket] = row.observations
        seconds[series] += row.seconds
        if row.trace_id is not None:
            examples[series][row.bucket] = Example(row.trace_id, row.example_seconds, row.example_at)
    return [
        Histogram(series, tuple(counts[series]), seconds[series], examples[series])
        for series in sorted(counts)
    ]


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
