"""First tokens of a fleet of replicas under random arrivals, simulated.

The replica with the fewest requests takes the next one. A request waits for a free sequence of its replica
and for the prompts before it. Every replica is at the pace of its full batch, which is the slowest.
"""

import math
from dataclasses import replace
from functools import lru_cache
from heapq import heappop, heappush

from filmgate.planner.fleet.queueing import MAX_SERVERS
from filmgate.planner.fleet.simulation import SIZING_SEEDS, peak_arrivals
from filmgate.planner.fleet.sizing import LATE_MARGIN, MAX_LATE, Fleet, Layout, confirmed, machines_of
from filmgate.planner.fleet.traffic import Traffic
from filmgate.planner.llm.arrivals import (
    ReplicaPace,
    RequestDemand,
    first_token_percentile,
    fleet_of,
    with_p99,
)
from filmgate.planner.llm.loaded import FirstToken
from filmgate.planner.percentiles import percentile_of_sorted

REQUESTS = 4000
MAX_HOUR_REQUESTS = 20_000
# Of a larger fleet an equal part is simulated, which waits a little longer.
MIN_PART, MAX_PART, MAX_SEQUENCES = 4, 32, 4096


@lru_cache(maxsize=512)
def first_tokens(
    traffic: Traffic, pace: ReplicaPace, replicas: int, seeds: tuple[int, ...] = SIZING_SEEDS
) -> tuple[float, ...]:
    """Seconds to the first token in the busiest hour, sorted.

    Independent runs together, each without its start, when the fleet was still filling.
    """
    return _first_tokens(traffic, pace, replicas, seeds, REQUESTS)


@lru_cache(maxsize=512)
def first_tokens_of_an_hour(
    traffic: Traffic, pace: ReplicaPace, replicas: int, seed: int
) -> tuple[float, ...]:
    """One run of the busiest hour. A shorter one may be a single congestion, or have none."""
    requests = min(max(REQUESTS, int(traffic.peak_rate * 3600)), MAX_HOUR_REQUESTS)
    return _first_tokens(traffic, pace, replicas, (seed,), requests)


def _first_tokens(
    traffic: Traffic, pace: ReplicaPace, replicas: int, seeds: tuple[int, ...], requests: int
) -> tuple[float, ...]:
    part = min(replicas, MAX_PART, max(MIN_PART, MAX_SEQUENCES // pace.batch))
    traffic = replace(traffic, per_day=traffic.per_day * part / replicas)
    count = max(requests, 2 * part * pace.batch)
    filling = max(count // 10, int(traffic.peak_rate * pace.request))
    found: list[float] = []
    for seed in seeds:
        found += _run(peak_arrivals(traffic, count, seed), pace, part)[filling:]
    return tuple(sorted(found))


def fewest_simulated(demand: RequestDemand, replicas: int, at_most: int = MAX_SERVERS) -> int | None:
    """The fewest replicas from `replicas` on that meet the target when simulated; None above `at_most`.

    They meet it at the upper end of the interval, with a margin for the sampling error.
    """
    if demand.ttft_seconds is None:
        return replicas
    while replicas <= at_most:
        tokens = first_tokens(demand.traffic, demand.pace_high, replicas)
        if percentile_of_sorted(tokens, 1 - MAX_LATE * LATE_MARGIN) <= demand.ttft_seconds:
            return replicas
        replicas += max(1, replicas // 50)
    return None


def simulated_fleet(demand: RequestDemand, layout: Layout, needed: int) -> tuple[Fleet, FirstToken]:
    """The fleet of `needed` replicas and its expected first token, with simulated latencies."""
    replicas = machines_of(needed, layout, has_target=demand.has_target).replicas
    first = FirstToken.of(first_tokens(demand.traffic, demand.pace, replicas))
    worst = percentile_of_sorted(first_tokens(demand.traffic, demand.pace_high, needed), 0.95)
    return replace(fleet_of(demand, layout, needed, first, worst), is_simulated=True), first


def expected_p95(demand: RequestDemand, replicas: int, *, is_simulated: bool) -> float:
    """p95 of the first token at the expected pace with so many replicas; infinite if they are overloaded."""
    by_formulas = first_token_percentile(demand.traffic, demand.pace, replicas, 0.95)
    if not is_simulated or math.isinf(by_formulas):
        return by_formulas
    return percentile_of_sorted(first_tokens(demand.traffic, demand.pace, replicas), 0.95)


def confirm(demand: RequestDemand, fleet: Fleet) -> Fleet:
    """The fleet with the number of further runs of its busiest hour that miss the target, and p99."""
    limit = demand.ttft_seconds
    if limit is None:
        return fleet

    def is_late(seed: int) -> bool:
        run = first_tokens_of_an_hour(demand.traffic, demand.pace_high, fleet.needed_replicas, seed)
        return percentile_of_sorted(run, 1 - MAX_LATE) > limit

    return confirmed(with_p99(demand, fleet), is_late)


def _run(arrivals: list[float], pace: ReplicaPace, replicas: int) -> list[float]:
    """Seconds to each first token."""
    if replicas == 1:
        return _run_alone(arrivals, pace)
    requests = [0] * replicas  # of each replica, running and waiting
    ends: list[list[float]] = [[] for _ in range(replicas)]  # of the requests of each replica, in order
    prefilled = [0.0] * replicas  # when the last prompt of each replica is done
    load = [0.0] * replicas  # requests, and of equal ones the replica whose prompts are done first
    leaving: list[tuple[float, int]] = []
    horizon = 1e9  # longer than any run, in seconds
    batch, prefill, reading = pace.batch, pace.first_token, pace.request - pace.first_token
    found = []
    for now in arrivals:
        while leaving and leaving[0][0] <= now:
            _, one = heappop(leaving)
            requests[one] -= 1
            load[one] = requests[one] * horizon + prefilled[one]
        one = load.index(min(load))
        earlier, start = ends[one], prefilled[one]
        start = max(start, now)
        if len(earlier) >= batch and earlier[-batch] > start:
            start = earlier[-batch]  # the sequence of the request `batch` places before becomes free
        first = start + prefill
        end = first + reading
        prefilled[one] = first
        earlier.append(end)
        heappush(leaving, (end, one))
        requests[one] += 1
        load[one] = requests[one] * horizon + first
        found.append(first - now)
    return found


def _run_alone(arrivals: list[float], pace: ReplicaPace) -> list[float]:
    """The same of a single replica, which is not chosen."""
    batch, prefill, reading = pace.batch, pace.first_token, pace.request - pace.first_token
    firsts = [-math.inf] * batch
    for place, now in enumerate(arrivals):
        firsts.append(max(now, firsts[-1], firsts[place] + reading) + prefill)
    return [first - now for first, now in zip(firsts[batch:], arrivals, strict=True)]
