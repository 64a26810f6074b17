"""Prometheus metrics of the circuit breakers, read from the database at each scrape."""

from collections.abc import Iterator

import sqlalchemy as sa
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from filmgate.database import Database
from filmgate.database.schema import breakers
from filmgate.errors import QueueUnavailable
from filmgate.providers.circuit import Phase
from filmgate.telemetry.metrics import BREAKER_PHASE


class BreakerCollector(Collector):
    """The phase of every provider's breaker; nothing while the database is down."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def describe(self) -> Iterator[Metric]:
        yield BREAKER_PHASE.gauge()

    def collect(self) -> Iterator[Metric]:
        family = BREAKER_PHASE.gauge()
        try:
            with self._database.read() as connection:
                rows = connection.execute(sa.select(breakers.c.provider, breakers.c.phase)).all()
        except QueueUnavailable:
            return
        for row in rows:
            for phase in Phase:
                family.add_metric([row.provider, phase.value], float(row.phase == phase.value))
        yield family
