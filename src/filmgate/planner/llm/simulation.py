"""First tokens of a fleet of replicas under random arrivals, simulated.

The replica with the fewest requests takes the next one. A request waits for a free sequence of its replica
and for the prompts before it. Every replica is at the pace of its full batch, which is the slowest.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from heapq import heappop, heappush

from filmgate.planner.fleet.queueing import MAX_SERVERS
from filmgate.planner.fleet.simulation import SIZING_SEEDS, peak_arrivals
from filmgate.planner.fleet.sizing import CONFIRMING_SEEDS, LATE_MARGIN, MAX_LATE
from filmgate.planner.fleet.traffic import Traffic
from filmgate.planner.llm.arrivals import ReplicaPace

REQUESTS = 4000
MAX_HOUR_REQUESTS = 20_000
# Of a larger fleet an equal part is simulated, which waits a little longer.
MIN_PART, MAX_PART, MAX_SEQUENCES = 4, 32, 4096


@dataclass(frozen=True, slots=True)
class FirstTokens:
    """Seconds to the first token, sorted, in the busiest hour."""

    seconds: tuple[float, ...]

    def percentile(self, share: float) -> float:
        return self.seconds[min(len(self.seconds) - 1, int(share * len(self.seconds)))]

    @property
    def mean(self) -> float:
        return sum(self.seconds) / len(self.seconds)

    def is_quick(self, limit: float, late: float = MAX_LATE) -> bool:
        """Whether at most the share `late` of the requests exceed the limit."""
        return self.percentile(1 - late) <= limit


@lru_cache(maxsize=512)
def first_tokens(
    traffic: Traffic, pace: ReplicaPace, replicas: int, seeds: tuple[int, ...] = SIZING_SEEDS
) -> FirstTokens:
    """Independent runs together, each without its start, when the fleet was still filling."""
    return _first_tokens(traffic, pace, replicas, seeds, REQUESTS)


@lru_cache(maxsize=512)
def first_tokens_of_an_hour(traffic: Traffic, pace: ReplicaPace, replicas: int, seed: int) -> FirstTokens:
    """One run of the busiest hour. A shorter one may be a single congestion, or have none."""
    requests = min(max(REQUESTS, int(traffic.peak_rate * 3600)), MAX_HOUR_REQUESTS)
    return _first_tokens(traffic, pace, replicas, (seed,), requests)


def _first_tokens(
    traffic: Traffic, pace: ReplicaPace, replicas: int, seeds: tuple[int, ...], requests: int
) -> FirstTokens:
    part = min(replicas, MAX_PART, max(MIN_PART, MAX_SEQUENCES // pace.batch))
    traffic = replace(traffic, per_day=traffic.per_day * part / replicas)
    count = max(requests, 2 * part * pace.batch)
    filling = max(count // 10, int(traffic.peak_rate * pace.request))
    found: list[float] = []
    for seed in seeds:
        found += _run(peak_arrivals(traffic, count, seed), pace, part)[filling:]
    return FirstTokens(tuple(sorted(found)))


def is_enough(traffic: Traffic, pace: ReplicaPace, replicas: int, ttft_seconds: float) -> bool:
    """Whether the fleet meets the target with the margin for the sampling error of a percentile."""
    return first_tokens(traffic, pace, replicas).is_quick(ttft_seconds, MAX_LATE * LATE_MARGIN)


def fewest_simulated(traffic: Traffic, pace: ReplicaPace, ttft_seconds: float, replicas: int) -> int | None:
    """The fewest replicas from `replicas` on that meet the target when simulated; None above MAX_SERVERS."""
    while replicas <= MAX_SERVERS:
        if is_enough(traffic, pace, replicas, ttft_seconds):
            return replicas
        replicas += max(1, replicas // 50)
    return None


def late_runs(traffic: Traffic, pace: ReplicaPace, replicas: int, ttft_seconds: float) -> int:
    """How many of the confirming runs, with arrivals that no fleet is sized with, miss the target."""
    runs = (first_tokens_of_an_hour(traffic, pace, replicas, seed) for seed in CONFIRMING_SEEDS)
    return sum(not run.is_quick(ttft_seconds) for run in runs)


def _run(arrivals: list[float], pace: ReplicaPace, replicas: int) -> list[float]:
    requests = [0] * replicas  # of each replica, running and waiting
    slots: list[list[float]] = [[] for _ in range(replicas)]  # when each sequence that is in use becomes free
    prefilled = [0.0] * replicas  # when the last prompt of each replica is done
    load = [0.0] * replicas  # requests, and of equal ones the replica whose prompts are done first
    leaving: list[tuple[float, int]] = []
    horizon = 1e9  # longer than any run, in seconds
    found = []
    for now in arrivals:
        while leaving and leaving[0][0] <= now:
            _, one = heappop(leaving)
            requests[one] -= 1
            load[one] = requests[one] * horizon + prefilled[one]
        one = load.index(min(load))
        held = slots[one]
        while held and held[0] <= now:
            heappop(held)
        starts = now if len(held) < pace.batch else heappop(held)
        first = max(starts, prefilled[one]) + pace.first_token
        prefilled[one], end = first, first + pace.request - pace.first_token
        heappush(held, end)
        heappush(leaving, (end, one))
        requests[one] += 1
        load[one] = requests[one] * horizon + first
        found.append(first - now)
    return found
