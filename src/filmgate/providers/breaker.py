"""The circuit breaker of one provider, shared by all processes through one database row."""

import random
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TypeVar

import sqlalchemy as sa
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from filmgate.database import Database
from filmgate.database.schema import breakers
from filmgate.database.upserts import insert_into
from filmgate.errors import QueueUnavailable
from filmgate.providers.circuit import BreakerHealth, Chance, Circuit, Outcome, Permit, Phase
from filmgate.settings import RoutingSettings
from filmgate.telemetry.logs import Log
from filmgate.telemetry.metrics import BREAKER_PHASE

T = TypeVar("T")
log = Log("breaker")

_OWN = breakers.c.provider == sa.bindparam("own")
_READ = sa.select(breakers).where(_OWN)
_LOCK = _READ.with_for_update()
_WRITE = sa.update(breakers).where(_OWN)


class Breaker:
    """Call `admit` before a provider call and `record` after it. Every method is one short transaction.

    The row lock ensures one probe at a time across processes. Writes are not flushed to disk.
    """

    def __init__(
        self, database: Database, provider: str, settings: RoutingSettings, chance: Chance = random.random
    ) -> None:
        self._database = database
        self._provider = provider
        self._settings = settings
        self._chance = chance

    def admit(self, *, is_retry: bool = False) -> Permit | None:
        """A permit for one call, or None. A retry also uses a token of the retry budget."""
        return self._change(lambda circuit, now: circuit.admit(now, self._settings, is_retry=is_retry))

    def record(self, outcome: Outcome, permit: Permit | None = None) -> None:
        """Record the result of a call. Calls without a permit (polls) count, but not as a probe."""
        held, chance = permit or Permit(), self._chance()
        self._change(lambda circuit, now: (circuit.record(outcome, held, now, self._settings, chance), None))

    def release(self, permit: Permit) -> None:
        """Return an unused permit."""
        if permit.probe is not None:
            self._change(lambda circuit, now: (circuit.release(permit, now), None))

    def observe(self, seconds: float, expected_seconds: float) -> None:
        """Record the real and the expected duration of a clip."""
        self._change(lambda circuit, _: (circuit.observe(seconds, expected_seconds), None))

    def health(self) -> BreakerHealth:
        """The current state, read only."""
        with self._database.read() as connection:
            row = connection.execute(_READ, {"own": self._provider}).mappings().one_or_none()
            now = self._database.steady_now(connection)
        if row is None:
            return BreakerHealth()
        circuit = _to_circuit(row)
        return BreakerHealth(circuit.phase, circuit.is_probe_due(now, self._settings), circuit.pace)

    def _change(self, step: Callable[[Circuit, float], tuple[Circuit, T]]) -> T:
        with self._database.write(is_durable=False) as connection:
            circuit = self._lock(connection)
            changed, answer = step(circuit, self._database.steady_now(connection))
            if changed != circuit:
                connection.execute(_WRITE.values(asdict(changed)), {"own": self._provider})
        if changed.phase is not circuit.phase:
            log.warning("breaker changed state", provider=self._provider, state=changed.phase)
        return answer

    def _lock(self, connection: sa.Connection) -> Circuit:
        row = connection.execute(_LOCK, {"own": self._provider}).mappings().one_or_none()
        if row is None:
            self._create_row(connection)
            row = connection.execute(_LOCK, {"own": self._provider}).mappings().one()
        return _to_circuit(row)

    def _create_row(self, connection: sa.Connection) -> None:
        """Another process may create the row at the same time."""
        row = {"provider": self._provider} | asdict(Circuit())
        connection.execute(insert_into(connection, breakers).values(row).on_conflict_do_nothing())


class BreakerCollector(Collector):
    """The phase of the provider's breaker, read at each scrape; nothing while the database is down.

    The row of a provider that was removed stays in the phase that it had: it is not exported.
    """

    def __init__(self, database: Database, provider: str) -> None:
        self._database = database
        self._provider = provider

    def describe(self) -> Iterator[Metric]:
        yield BREAKER_PHASE.gauge()

    def collect(self) -> Iterator[Metric]:
        family = BREAKER_PHASE.gauge()
        try:
            with self._database.read() as connection:
                row = connection.execute(_READ, {"own": self._provider}).one_or_none()
        except QueueUnavailable:
            return
        if row is not None:
            for phase in Phase:
                family.add_metric([self._provider, phase.value], float(row.phase == phase.value))
        yield family


def _to_circuit(row: sa.RowMapping) -> Circuit:
    fields = {name: row[name] for name in asdict(Circuit())}
    return Circuit(**fields | {"phase": Phase(fields["phase"])})
