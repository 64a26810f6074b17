"""Workloads for a replay: a Monday morning, a night, a burst of one tenant, and an office week."""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from filmgate.planner.fleet.replay import Job

_HOUR, _DAY = 3600.0, 86_400.0
_TENANTS = ("acme", "globex", "initech")
_SEED = 11
BURST = "burst"  # the tenant of the burst


@dataclass(frozen=True, slots=True)
class Scenario:
    """A workload, with the seconds that a job keeps a GPU busy."""

    name: str
    text: str
    arrivals: Callable[[random.Random], Iterator[tuple[float, str]]]

    def jobs(self, seconds: float, seed: int = _SEED) -> list[Job]:
        draw = random.Random(seed)  # noqa: S311 - a simulation, not a secret
        return [Job(at, tenant, seconds) for at, tenant in sorted(self.arrivals(draw))]


def _poisson(draw: random.Random, begin: float, end: float, per_hour: float) -> Iterator[tuple[float, str]]:
    now = begin
    while (now := now + draw.expovariate(per_hour / _HOUR)) < end:
        yield now, draw.choice(_TENANTS)


def _monday(draw: random.Random) -> Iterator[tuple[float, str]]:
    """Six to two: a quiet start, then waves of three minutes, seven minutes apart, from nine to eleven."""
    yield from _poisson(draw, 6 * _HOUR, 14 * _HOUR, 30)
    for wave in range(12):
        begin = 9 * _HOUR + wave * 600
        yield from _poisson(draw, begin, begin + 180, 400)


def _night(draw: random.Random) -> Iterator[tuple[float, str]]:
    """Ten at night to six in the morning, three jobs an hour."""
    yield from _poisson(draw, 22 * _HOUR, 30 * _HOUR, 3)


def _burst(draw: random.Random) -> Iterator[tuple[float, str]]:
    """Three tenants with sixty jobs an hour; a fourth sends 150 jobs at once."""
    yield from _poisson(draw, 9 * _HOUR, 13 * _HOUR, 60)
    yield from ((10 * _HOUR, BURST) for _ in range(150))


def _week(draw: random.Random) -> Iterator[tuple[float, str]]:
    """Monday to Sunday: office hours with a peak before noon, little at night, less at the weekend."""
    office = (40, 120, 200, 240, 180, 120, 160, 160, 100, 60)  # jobs an hour from eight on
    for day in range(7):
        is_workday = day < 5
        for hour in range(24):
            is_busy = is_workday and 8 <= hour < 18
            rate = office[hour - 8] if is_busy else 2.0 if is_workday else 1.0
            begin = day * _DAY + hour * _HOUR
            yield from _poisson(draw, begin, begin + _HOUR, rate)


SCENARIOS: Mapping[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario("monday", "Monday morning, waves ten minutes apart", _monday),
        Scenario("night", "a night", _night),
        Scenario("burst", "a burst of one tenant", _burst),
        Scenario("week", "an office week", _week),
    )
}
