"""A fleet under arrivals, simulated: latency, machine time and starts of the same run.

Clips start in order of arrival on the replica that is free first. A replica that starts takes
`start_seconds`: node, image, weights and compiler. Plans are decided by this simulation. The formulas in
queueing.py are a fast screen, and a test holds them to it.
"""

import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush, heapreplace

from filmgate.planner.fleet.traffic import Traffic

SIZING_SEEDS = (7, 8, 9)
SIZING_ARRIVALS = 4000

Scaling = Callable[[int, int], int]
"""Replicas to run, from the clips that wait and the replicas that run or start."""


def one_per_waiting_clip(_waiting: int, replicas: int) -> int:
    """One more replica. The rule is asked once for each clip that finds no free replica."""
    return replicas + 1


@dataclass(frozen=True, slots=True)
class Operation:
    """How a fleet is run: between `min_replicas` and `max_replicas`.

    A replica that has been idle for `cooldown_seconds` is removed. With equal limits nothing ever scales.
    """

    min_replicas: int
    max_replicas: int
    start_seconds: float = 0.0
    cooldown_seconds: float = 300.0
    scaling: Scaling = one_per_waiting_clip


@dataclass(frozen=True, slots=True)
class Outcome:
    """Latencies in order of arrival, seconds of replicas that were paid, and replicas that were started."""

    latencies: tuple[float, ...]
    replica_seconds: float
    span_seconds: float
    starts: int

    def percentile(self, share: float) -> float:
        """The latency that `share` of the clips do not exceed."""
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    @property
    def replica_hours_per_day(self) -> float:
        return self.replica_seconds / self.span_seconds * 24


def simulate(arrivals: Sequence[float], service: float, fleet: Operation) -> Outcome:
    """Runs clips of `service` seconds that arrive at these times, in seconds and in order.

    The fleet changes only when a clip arrives or a replica becomes free, so the loop visits the arrivals and
    first catches up with what happened since the one before: clips that waited have started, in order, and
    replicas that were idle for too long have been removed.
    """
    run = _Run(service, fleet)
    for now in arrivals:
        run.start_waiting(until=now)
        run.remove_idle(now)
        run.waiting.append(now)
        if run.has_free(now):
            run.start_waiting(until=now)
        else:
            run.scale_out(now)
    run.start_waiting(until=math.inf)
    return run.outcome(arrivals[-1])


class _Run:
    """The state of one simulation: the replicas, and the arrival times of the clips that wait."""

    def __init__(self, service: float, fleet: Operation) -> None:
        self._service, self._fleet = service, fleet
        self._replicas = [(0.0, 0.0)] * fleet.min_replicas  # (free from, started at), a heap
        self.waiting: deque[float] = deque()
        self._latencies: list[float] = []
        self._paid, self._starts = 0.0, 0

    def has_free(self, now: float) -> bool:
        return bool(self._replicas) and self._replicas[0][0] <= now

    def start_waiting(self, until: float) -> None:
        """Starts waiting clips, first come first served, on replicas that are free by `until`."""
        while self.waiting and self.has_free(until):
            free, started = self._replicas[0]
            arrived = self.waiting.popleft()
            done = max(free, arrived) + self._service
            heapreplace(self._replicas, (done, started))
            self._latencies.append(done - arrived)

    def remove_idle(self, now: float) -> None:
        """Removes replicas whose cooldown ended before `now`. None is idle while a clip waits."""
        cooldown = self._fleet.cooldown_seconds
        while len(self._replicas) > self._fleet.min_replicas and self._replicas[0][0] + cooldown <= now:
            free, started = heappop(self._replicas)
            self._paid += free + cooldown - started

    def scale_out(self, now: float) -> None:
        """Starts the replicas that the rule wants. They are free when they have started."""
        running = len(self._replicas)
        wanted = min(self._fleet.max_replicas, self._fleet.scaling(len(self.waiting), running))
        for _ in range(wanted - running):
            heappush(self._replicas, (now + self._fleet.start_seconds, now))
            self._starts += 1

    def outcome(self, last_arrival: float) -> Outcome:
        """The result. Replicas above the minimum are paid until their cooldown or the end of the run.

        Clips of a fleet whose rule starts no replica wait for ever.
        """
        self._latencies += [math.inf] * len(self.waiting)
        end = max([last_arrival, *(free for free, _ in self._replicas)])
        removable = len(self._replicas) - self._fleet.min_replicas
        paid = self._paid
        for free, started in sorted(self._replicas):
            paid += (min(end, free + self._fleet.cooldown_seconds) if removable > 0 else end) - started
            removable -= 1
        return Outcome(tuple(self._latencies), paid, max(end, 1e-9), self._starts)


def fixed_fleet_latencies(arrivals: Sequence[float], service: float, replicas: int) -> list[float]:
    """The latencies of `simulate` for a fleet that does not scale, about five times as fast.

    All clips take equally long, so they end in order: a clip takes the replica of the clip `replicas` places
    before it.
    """
    ends = [0.0] * replicas
    for i, now in enumerate(arrivals):
        free = ends[i]
        ends.append((max(now, free)) + service)
    return [end - now for end, now in zip(ends[replicas:], arrivals, strict=True)]


@lru_cache(maxsize=64)
def unit_arrivals(batch: float, count: int, seed: int) -> tuple[float, ...]:
    """Random arrivals at an average rate of one per second, single or in batches of geometric size.

    The same arrivals at another rate are these times divided by the rate. More clips, a longer service and
    fewer replicas therefore never shorten a simulated wait.
    """
    draw = random.Random(seed)  # noqa: S311 - a simulation, not a secret
    now = 0.0
    found: list[float] = []
    while len(found) < count:
        now += draw.expovariate(1 / batch)
        size = 1 if batch <= 1 else 1 + int(math.log(1 - draw.random()) / math.log(1 - 1 / batch))
        found += [now] * size
    return tuple(found[:count])


def peak_arrivals(traffic: Traffic, count: int, seed: int) -> list[float]:
    """Arrivals at the rate of the busiest hour, or the given ones."""
    if traffic.given:
        return list(traffic.given)
    rate = traffic.peak_rate
    return [time / rate for time in unit_arrivals(traffic.batch, count, seed)]


def latency_percentile(traffic: Traffic, service: float, replicas: int, share: float) -> float:
    """The simulated latency in the busiest hour that `share` of the clips do not exceed."""
    if not traffic.given and traffic.peak_rate * service >= replicas:
        return math.inf
    ordered = sorted_latencies(traffic, service, replicas)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@lru_cache(maxsize=256)
def sorted_latencies(
    traffic: Traffic, service: float, replicas: int, seeds: tuple[int, ...] = SIZING_SEEDS
) -> tuple[float, ...]:
    """Latencies of independent runs, each without its first tenth, when the fleet was still filling."""
    if traffic.given:
        return tuple(sorted(fixed_fleet_latencies(traffic.given, service, replicas)))
    count = max(SIZING_ARRIVALS, 10 * replicas)
    found: list[float] = []
    for seed in seeds:
        found += fixed_fleet_latencies(peak_arrivals(traffic, count, seed), service, replicas)[count // 10 :]
    return tuple(sorted(found))


def day_arrivals(traffic: Traffic, days: float, seed: int) -> list[float]:
    """Arrivals of whole days, with the quiet and the busy hours of the traffic."""
    if traffic.given:
        return list(traffic.given)
    draw = random.Random(seed)  # noqa: S311 - a simulation, not a secret
    found: list[float] = []
    for hour in range(int(days * 24)):
        rate = traffic.hour_rate(hour % 24) / traffic.batch
        now = 0.0
        while rate and (now := now + draw.expovariate(rate)) < 3600:
            p = 1 / traffic.batch
            size = 1 if p >= 1 else 1 + int(math.log(1 - draw.random()) / math.log(1 - p))
            found += [hour * 3600 + now] * size
    return found
