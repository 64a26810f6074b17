"""Replicas of a language model for requests that come at random.

A replica answers up to a batch of sequences at once, each in a place of its own: all replicas together are a
queue with as many servers as places, whose service is a whole answer at the full batch's pace. Prompts are
read one after the other on each replica: a second queue in front of the first token, with one server a
replica. Both waits count, each at its percentile, which is a little more than the percentile of their sum.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from filmgate.planner.fleet.queueing import fewest_servers, wait_percentile
from filmgate.planner.fleet.sizing import FULLEST, Fleet
from filmgate.planner.fleet.traffic import Traffic
from filmgate.planner.llm.memory import cache_capacity, llm_budget, usable_bytes
from filmgate.planner.llm.step_time import Serving, first_token_seconds, steady_token_seconds

MOST_SEQUENCES = 256  # what engines allow at once unless told otherwise


@dataclass(frozen=True, slots=True)
class Pace:
    """One replica at its full batch: seconds to read a prompt, to answer a request, and answers at once."""

    batch: int
    first_token: float
    between_tokens: float
    request: float

    @property
    def replica_seconds(self) -> float:
        """What one request takes of a replica."""
        return self.request / self.batch


@dataclass(frozen=True, slots=True)
class Limits:
    """How many sequences a replica may hold, at what pace; `safety_factor` is the memory budget's."""

    most_sequences: int
    tbt_seconds: float | None
    safety_factor: float


def widest_batch(
    serving: Serving, prompt: int, answer: int, limits: Limits, constants: Mapping[str, float]
) -> int:
    """The most sequences at once that fit the memory and keep the time between tokens; at least one."""

    def is_allowed(batch: int) -> bool:
        held = llm_budget(serving, prompt + answer, batch, limits.safety_factor).peak_bytes
        pace = steady_token_seconds(serving, batch, prompt, answer, constants)
        is_quick = limits.tbt_seconds is None or pace <= limits.tbt_seconds
        return is_quick and held <= usable_bytes(serving)

    low, high = 1, int(min(limits.most_sequences, cache_capacity(serving, prompt + answer))) + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_allowed(middle) else (low, middle)
    return low


def pace_of(serving: Serving, prompt: int, answer: int, batch: int, constants: Mapping[str, float]) -> Pace:
    """What a replica does while all its places are taken."""
    first = first_token_seconds(serving, prompt, constants)
    between = steady_token_seconds(serving, batch, prompt, answer, constants)
    return Pace(batch, first, between, first + answer * between)


def first_token_percentile(traffic: Traffic, pace: Pace, replicas: int, share: float) -> float:
    """Seconds to the first token that `share` of requests stay within in the busiest hour."""
    rate, bunch = traffic.peak_rate, traffic.bunch
    place = wait_percentile(rate, pace.request, replicas * pace.batch, share, bunch)
    turn = wait_percentile(rate, pace.first_token, replicas, share, bunch)
    return place + turn + pace.first_token


def size_llm_fleet(
    traffic: Traffic, pace: Pace, ttft_seconds: float | None, gpus_per_replica: int, per_instance: int
) -> Fleet | None:
    """The fewest replicas whose p95 of the first token is in time in the busiest hour; None beyond reason."""
    busy = traffic.peak_rate * max(pace.replica_seconds, pace.first_token)

    def fewest(share: float) -> int | None:
        if ttft_seconds is None:
            return max(1, math.ceil(busy / FULLEST))
        return fewest_servers(
            lambda n: first_token_percentile(traffic, pace, n, share) <= ttft_seconds, math.floor(busy)
        )

    replicas, stricter = fewest(0.95), fewest(0.99)
    if replicas is None:
        return None
    warm = replicas if traffic.busy_hours >= 24 else 1
    first_95, first_99 = (first_token_percentile(traffic, pace, replicas, share) for share in (0.95, 0.99))
    return Fleet(
        replicas=replicas,
        replicas_p99=stricter if ttft_seconds is not None else None,
        gpus_per_replica=gpus_per_replica,
        instances=math.ceil(replicas / per_instance),
        utilisation=traffic.average_rate * pace.replica_seconds / replicas,
        wait_p95=first_95 - pace.first_token,
        latency_p95=first_95,
        latency_p99=first_99,
        warm_replicas=warm,
        warm_instances=math.ceil(warm / per_instance),
    )
