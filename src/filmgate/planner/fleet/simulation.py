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
from heapq import heapify, heappop, heappush, heapreplace

from filmgate.planner.fleet.traffic import Traffic

SIZING_SEED = 7
SIZING_ARRIVALS = 4000

Scaling = Callable[[int, int], int]
"""Replicas to run, from the clips that wait and the replicas that run or start."""


def one_per_waiting_clip(waiting: int, replicas: int) -> int:
    """Starts a replica for each clip that waits."""
    return replicas + waiting


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
    """Runs clips of `service` seconds that arrive at these times, in seconds and in order."""
    replicas = [(0.0, 0.0)] * fleet.min_replicas  # (free from, started at), a heap
    heapify(replicas)
    waiting: deque[float] = deque()
    latencies, paid, starts = [], 0.0, 0
    for now in arrivals:
        while len(replicas) > fleet.min_replicas and replicas[0][0] + fleet.cooldown_seconds <= now:
            free, started = heappop(replicas)
            paid += free + fleet.cooldown_seconds - started
        while waiting and waiting[0] <= now:
            waiting.popleft()
        if len(replicas) < fleet.max_replicas and not (replicas and replicas[0][0] <= now):
            wanted = min(fleet.max_replicas, fleet.scaling(len(waiting) + 1, len(replicas)))
            for _ in range(wanted - len(replicas)):
                heappush(replicas, (now + fleet.start_seconds, now))
                starts += 1
        free, started = replicas[0]
        begin = max(free, now)
        if begin > now:
            waiting.append(begin)
        heapreplace(replicas, (begin + service, started))
        latencies.append(begin + service - now)
    end = max([arrivals[-1], *(free for free, _ in replicas)])
    removable = len(replicas) - fleet.min_replicas
    for free, started in sorted(replicas):
        paid += (min(end, free + fleet.cooldown_seconds) if removable > 0 else end) - started
        removable -= 1
    return Outcome(tuple(latencies), paid, max(end, 1e-9), starts)


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


def peak_arrivals(traffic: Traffic, count: int = SIZING_ARRIVALS, seed: int = SIZING_SEED) -> list[float]:
    """Arrivals at the rate of the busiest hour, or the given ones."""
    if traffic.given:
        return list(traffic.given)
    rate = traffic.peak_rate
    return [time / rate for time in unit_arrivals(traffic.batch, count, seed)]


def latency_percentile(traffic: Traffic, service: float, replicas: int, share: float) -> float:
    """The simulated latency in the busiest hour that `share` of the clips do not exceed."""
    if not traffic.given and traffic.peak_rate * service >= replicas:
        return math.inf
    ordered = _sorted_latencies(traffic, service, replicas)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@lru_cache(maxsize=256)
def _sorted_latencies(traffic: Traffic, service: float, replicas: int) -> tuple[float, ...]:
    """Latencies without those of the first tenth, when the fleet was still filling."""
    arrivals = peak_arrivals(traffic, max(SIZING_ARRIVALS, 10 * replicas))
    skipped = 0 if traffic.given else len(arrivals) // 10
    return tuple(sorted(simulate(arrivals, service, Operation(replicas, replicas)).latencies[skipped:]))


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
