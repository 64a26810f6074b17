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
    fewest_by_formulas,
    first_token_percentile,
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


def first_token(traffic: Traffic, pace: ReplicaPace, replicas: int, *, is_simulated: bool) -> FirstToken:
    """The time to the first token with this number of replicas; infinite if they are overloaded."""
    p50, p95, p99 = (first_token_percentile(traffic, pace, replicas, share) for share in (0.5, 0.95, 0.99))
    if is_simulated and math.isfinite(p95):
        return FirstToken.of(first_tokens(traffic, pace, replicas))
    return FirstToken(p50, p50, p95, p99)


def request_fleet(
    demand: RequestDemand, layout: Layout, needed: int, *, is_simulated: bool
) -> tuple[Fleet, FirstToken]:
    """The fleet in which `needed` replicas meet the target, and its expected first token."""
    total, spare = machines_of(needed, layout, has_target=demand.has_target)
    traffic, replicas = demand.traffic, total * layout.replicas_per_machine
    first = first_token(traffic, demand.pace, replicas, is_simulated=is_simulated)
    worst = first_token(traffic, demand.pace_high, needed, is_simulated=is_simulated)
    warm = total if traffic.busy_hours >= 24 else 1  # clients wait for tokens at any hour
    fleet = Fleet(
        replicas=replicas,
        gpus_per_replica=layout.gpus_per_replica,
        instances=total,
        utilisation=traffic.average_rate * demand.pace.replica_seconds / replicas,
        wait_p95=first.p95 - demand.pace.first_token,
        latency_p95=first.p95,
        latency_p99=first.p99,
        warm_replicas=warm * layout.replicas_per_machine,
        warm_instances=warm,
        needed_replicas=needed,
        spare_instances=spare,
        worst_p95=worst.p95,
        is_simulated=is_simulated,
    )
    return fleet, first


def confirm(demand: RequestDemand, fleet: Fleet) -> Fleet:
    """The fleet with the number of further runs of its busiest hour that miss the target.

    It also gets the replicas that the target would need at p99, by formulas.
    """
    limit, needed = demand.ttft_seconds, fleet.needed_replicas
    if limit is None:
        return fleet

    def is_late(seed: int) -> bool:
        run = first_tokens_of_an_hour(demand.traffic, demand.pace_high, needed, seed)
        return percentile_of_sorted(run, 1 - MAX_LATE) > limit

    stricter = fewest_by_formulas(demand, 0.99)
    return confirmed(replace(fleet, replicas_p99=max(needed, stricter) if stricter else None), is_late)


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
