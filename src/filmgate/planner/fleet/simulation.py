"""A fleet under arrivals, simulated: latency, machine time and starts of the same run.

Clips start in order of arrival on the replica that is free first. A replica that starts takes
`start_seconds`: node, image, weights and compiler. Plans are decided by this simulation. The formulas in
queueing.py are a fast screen, and a test holds them to it.
"""

import math
import random
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush, heapreplace
from itertools import accumulate

from filmgate.planner.fleet.traffic import SECONDS_PER_DAY, Traffic
from filmgate.planner.percentiles import percentile_of_sorted

SIZING_SEEDS = (7, 8, 9)
SIZING_ARRIVALS = 4000


@dataclass(frozen=True, slots=True)
class Operation:
    """How a fleet is run: from `min_replicas` to `max_replicas`, one per `waiting_per_replica` waiting clips.

    A replica that has been idle for `cooldown_seconds` is removed. With equal limits no replica is. A
    machine holds `replicas_per_machine`, is paid from its start, and stays for `keep_seconds` after its last
    replica. A start on a new machine takes `start_seconds`, on an existing one `restart_seconds`. The
    autoscaler needs `activation_seconds` to act when nothing runs, and `reaction_seconds` otherwise.
    """

    min_replicas: int
    max_replicas: int
    start_seconds: float = 0.0
    cooldown_seconds: float = 300.0
    waiting_per_replica: float = 1.0
    replicas_per_machine: int = 1
    keep_seconds: float = 0.0
    restart_seconds: float | None = None
    activation_seconds: float = 0.0
    reaction_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Latencies in order of arrival, seconds of machines that were paid, and replicas that were started.

    In `up_seconds` at least one machine was paid. `cold` clips arrived when no replica was running. At most
    `peak` replicas ran or started at once.
    """

    latencies: tuple[float, ...]
    machine_seconds: float
    span_seconds: float
    starts: int
    up_seconds: float = 0.0
    cold: int = 0
    peak: int = 0


def simulate(
    arrivals: Sequence[float], service: float, fleet: Operation, span_seconds: float = 0.0
) -> Outcome:
    """Runs clips of `service` seconds that arrive at these times, in seconds and in order.

    The fleet changes only when a clip arrives or a replica becomes free, so the loop visits the arrivals and
    first catches up with what happened since the one before: clips that waited have started, in order, and
    replicas that were idle for too long have been removed. The run ends with the last clip, or after
    `span_seconds` if that is later.
    """
    run = _Run(service, fleet)
    for now in arrivals:
        if run.waiting:
            run.start_waiting(until=now)
        run.remove_idle(now)
        if not run.start_at_once(now):
            run.waiting.append(now)
            run.scale_out(now)
    run.start_waiting(until=math.inf)
    return run.outcome(max(arrivals[-1], span_seconds))


class _Machines:
    """The machines of a run: the replicas on each, when it was started, and what was paid."""

    def __init__(self, size: int, keep_seconds: float) -> None:
        self._size, self._keep = size, keep_seconds
        self._held: dict[int, int] = {}  # replicas on each machine that is paid
        self._started: dict[int, float] = {}
        self._empty: list[tuple[float, int]] = []  # since when, in order
        self.has_empty = False
        self._up_since = self._last_end = 0.0
        self.paid = self.up = 0.0

    def take(self, now: float) -> tuple[int, bool]:
        """A machine with room for one more replica, and whether it had to be started."""
        if self._size > 1:
            for machine, held in self._held.items():
                if 0 < held < self._size:
                    self._held[machine] += 1
                    return machine, False
        if self._empty:
            _, machine = self._empty.pop()
            self.has_empty = bool(self._empty)
            self._held[machine] = 1
            return machine, False
        if not self._held:
            self._up_since = now
        machine = len(self._started)
        self._held[machine], self._started[machine] = 1, now
        return machine, True

    def leave(self, machine: int, now: float) -> None:
        self._held[machine] -= 1
        if not self._held[machine]:
            insort(self._empty, (now, machine))
            self.has_empty = True

    def remove_empty(self, now: float) -> None:
        """Ends machines that have been empty for long enough before `now`."""
        while self._empty and self._empty[0][0] + self._keep <= now:
            since, machine = self._empty.pop(0)
            self._end(machine, since + self._keep)
        self.has_empty = bool(self._empty)

    def close(self, now: float) -> None:
        self.remove_empty(now)
        for machine in list(self._held):
            self._end(machine, now)

    def _end(self, machine: int, at: float) -> None:
        del self._held[machine]
        self.paid += at - self._started[machine]
        self._last_end = max(self._last_end, at)
        if not self._held:
            self.up += self._last_end - self._up_since


class _Run:
    """The state of one simulation: the replicas, and the arrival times of the clips that wait."""

    def __init__(self, service: float, fleet: Operation) -> None:
        self._service, self._fleet = service, fleet
        self._machines = _Machines(fleet.replicas_per_machine, fleet.keep_seconds)
        self._replicas = [(0.0, self._machines.take(0.0)[0]) for _ in range(fleet.min_replicas)]
        self.waiting: deque[float] = deque()
        self._latencies: list[float] = []
        self._starts = self._cold = 0
        self._peak = fleet.min_replicas

    def start_at_once(self, now: float) -> bool:
        """Starts a clip that finds a free replica. None is free while others wait."""
        replicas = self._replicas
        if not replicas or replicas[0][0] > now:
            return False
        heapreplace(replicas, (now + self._service, replicas[0][1]))
        self._latencies.append(self._service)
        return True

    def start_waiting(self, until: float) -> None:
        """Starts waiting clips, first come first served, on replicas that are free by `until`."""
        replicas, waiting, service = self._replicas, self.waiting, self._service
        while waiting and replicas and replicas[0][0] <= until:
            free, machine = replicas[0]
            arrived = waiting.popleft()
            done = max(free, arrived) + service
            heapreplace(replicas, (done, machine))
            self._latencies.append(done - arrived)

    def remove_idle(self, now: float) -> None:
        """Removes replicas whose cooldown ended before `now`. None is idle while a clip waits."""
        fleet, replicas = self._fleet, self._replicas
        if replicas and replicas[0][0] + fleet.cooldown_seconds > now and not self._machines.has_empty:
            return
        while len(replicas) > fleet.min_replicas and replicas[0][0] + fleet.cooldown_seconds <= now:
            free, machine = heappop(replicas)
            self._machines.leave(machine, free + fleet.cooldown_seconds)
        self._machines.remove_empty(now)

    def scale_out(self, now: float) -> None:
        """Starts replicas by Kubernetes' rule with the triggers of the chart: backlog and running clips.

        The larger one decides. The new replicas are free when they have started.
        """
        fleet, running = self._fleet, len(self._replicas)
        self._cold += running == 0
        wanted = min(fleet.max_replicas, math.ceil(len(self.waiting) / fleet.waiting_per_replica))
        if wanted <= running:
            return
        asked = now + (fleet.reaction_seconds if running else fleet.activation_seconds)
        again = fleet.start_seconds if fleet.restart_seconds is None else fleet.restart_seconds
        for _ in range(wanted - running):
            machine, is_new = self._machines.take(now)
            heappush(self._replicas, (asked + (fleet.start_seconds if is_new else again), machine))
            self._starts += 1
        self._peak = max(self._peak, wanted)

    def outcome(self, last: float) -> Outcome:
        """The result. Replicas above the minimum are paid until their cooldown or the end of the run."""
        end = max([last, *(free for free, _ in self._replicas)])
        self.remove_idle(end)
        self._machines.close(end)
        paid, up = self._machines.paid, self._machines.up
        span = max(end, 1e-9)
        return Outcome(tuple(self._latencies), paid, span, self._starts, up, self._cold, self._peak)


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
    draw, log = random.Random(seed).random, math.log  # noqa: S311 - a simulation, not a secret
    now = 0.0
    if batch <= 1:
        return tuple(now := now - log(1 - draw()) for _ in range(count))
    rate, shape = 1 / batch, log(1 - 1 / batch)
    found: list[float] = []
    while len(found) < count:
        now -= log(1 - draw()) / rate
        found += [now] * (1 + int(log(1 - draw()) / shape))
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
    return percentile_of_sorted(sorted_latencies(traffic, service, replicas), share)


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
    """Arrivals of some days, with the quiet and the busy hours of the traffic; the given ones if there are.

    The number of clips is that of the volume, and not a random one: otherwise a run would have a few per cent
    more or less work than the question has. Another volume changes the times and not the order of the same
    random arrivals.
    """
    if traffic.given:
        return list(traffic.given)
    count = max(1, round(traffic.per_day * days))
    enough = 2 ** math.ceil(math.log2(count + 1))  # few sizes, so that they are cached
    units = unit_arrivals(traffic.batch, enough, seed)
    scale = days / (units[count] * (1 + 1e-9))
    if traffic.busy_hours >= 24:
        return [unit * scale * SECONDS_PER_DAY for unit in units[:count]]
    ends = list(accumulate(traffic.hour_rate(hour) * 3600 for hour in range(24)))
    total = ends[-1]
    found = []
    for unit in units[:count]:
        day, rest = divmod(unit * scale, 1.0)
        target = rest * total
        hour = min(bisect_right(ends, target), 23)
        before = ends[hour - 1] if hour else 0.0
        rate = traffic.hour_rate(hour)
        found.append((day * 24 + hour) * 3600 + ((target - before) / rate if rate else 0.0))
    return found
