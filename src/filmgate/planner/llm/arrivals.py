"""Replicas of a language model for requests that arrive at random.

A replica answers a batch of sequences at once, so all replicas together are a queue with one server per
sequence, whose service time is a whole answer at full batch. Prompts are prefilled one at a time on each
replica: a second queue with one server per replica. The first token waits in both queues. The sum of the two
percentiles is slightly higher than the percentile of the sum.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from filmgate.planner.fleet.queueing import MAX_SERVERS, fewest_servers, wait_percentile
from filmgate.planner.fleet.sizing import MAX_UTILISATION, Fleet
from filmgate.planner.fleet.traffic import Traffic
from filmgate.planner.llm.loaded import Load, prefill_seconds
from filmgate.planner.llm.memory import llm_budget, usable_bytes
from filmgate.planner.llm.step_time import Serving, steady_token_seconds

MAX_SEQUENCES = 256  # the usual default limit of engines
STEPS_PER_DOUBLING = 8  # of the limits on sequences that are tried


@dataclass(frozen=True, slots=True)
class ReplicaPace:
    """One replica at its full batch: seconds to the first token, between tokens, and for a whole request."""

    batch: int
    first_token: float
    between_tokens: float
    request: float

    @property
    def replica_seconds(self) -> float:
        """Seconds of a replica that one request takes."""
        return self.request / self.batch


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Limits on the sequences of a replica and on the time between tokens."""

    max_sequences: int
    tbt_seconds: float | None
    safety_factor: float
    cached: int = 0


def largest_batch(
    serving: Serving, prompt: int, answer: int, limits: BatchLimits, constants: Mapping[str, float]
) -> int:
    """The most sequences that fit the memory and keep the time between tokens; at least one."""

    def is_allowed(batch: int) -> bool:
        held = llm_budget(serving, prompt + answer, batch, limits.safety_factor, limits.cached).peak_bytes
        pace = steady_token_seconds(serving, batch, prompt, answer, constants, cached=limits.cached)
        is_quick = limits.tbt_seconds is None or pace <= limits.tbt_seconds
        return is_quick and held <= usable_bytes(serving)

    low, high = 1, limits.max_sequences + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_allowed(middle) else (low, middle)
    return low


def batches_to_try(largest: int, always: Iterable[int] = ()) -> list[int]:
    """Limits on the sequences of a replica up to `largest`, and those of `always`, largest first.

    The steps do not depend on `largest`. A tighter latency target therefore chooses from fewer limits, and
    the cheapest of fewer never costs less.
    """
    steps = set(range(1, 2 * STEPS_PER_DOUBLING))
    size = 2 * STEPS_PER_DOUBLING
    while size <= largest:
        steps |= {size + i * size // STEPS_PER_DOUBLING for i in range(STEPS_PER_DOUBLING)}
        size *= 2
    return sorted((one for one in steps | set(always) if 1 <= one <= largest), reverse=True)


def fewest_possible(traffic: Traffic, pace: ReplicaPace) -> int:
    """Replicas that are at most MAX_UTILISATION busy in the busiest hour: no fleet is smaller."""
    busy = traffic.peak_rate * max(pace.replica_seconds, pace.first_token)
    return max(1, math.ceil(busy / MAX_UTILISATION))


def pace_of(serving: Serving, load: Load, constants: Mapping[str, float]) -> ReplicaPace:
    """The pace of a replica whose batch is full: its prompts are prefilled while the others decode."""
    first = prefill_seconds(serving, load, constants)
    between = steady_token_seconds(
        serving, load.sequences, load.prompt, load.answer, constants, cached=load.cached
    )
    return ReplicaPace(load.sequences, first, between, first + load.answer * between)


def first_token_percentile(traffic: Traffic, pace: ReplicaPace, replicas: int, share: float) -> float:
    """Seconds to the first token that `share` of the requests do not exceed in the busiest hour."""
    rate, batch = traffic.peak_rate, traffic.batch
    sequence_wait = wait_percentile(rate, pace.request, replicas * pace.batch, share, batch)
    prefill_wait = wait_percentile(rate, pace.first_token, replicas, share, batch)
    return sequence_wait + prefill_wait + pace.first_token


def busiest_sequences(traffic: Traffic, pace: ReplicaPace, replicas: int) -> int:
    """Sequences of one replica that are rarely exceeded in the busiest hour; at most its batch.

    Arrivals at random make the number in progress a Poisson variable.
    """
    mean = traffic.peak_rate * pace.request / replicas
    return max(1, min(pace.batch, math.ceil(mean + 2 * math.sqrt(mean * traffic.batch))))


def size_llm_fleet(
    traffic: Traffic, pace: ReplicaPace, ttft_seconds: float | None, gpus_per_replica: int, per_instance: int
) -> Fleet | None:
    """The smallest fleet whose p95 time to first token meets the target in the busiest hour, or None.

    It is sized by formulas; simulation.py adds the replicas that they lack.
    """
    stable = fewest_possible(traffic, pace)

    def fewest(share: float) -> int | None:
        if ttft_seconds is None:
            return stable if stable <= MAX_SERVERS else None
        return fewest_servers(
            lambda n: first_token_percentile(traffic, pace, n, share) <= ttft_seconds, stable - 1
        )

    replicas = fewest(0.95)
    if replicas is None:
        return None
    stricter = fewest(0.99) if ttft_seconds is not None else None
    return fleet_of(traffic, pace, replicas, stricter, gpus_per_replica, per_instance)


def fleet_of(
    traffic: Traffic,
    pace: ReplicaPace,
    replicas: int,
    replicas_p99: int | None,
    gpus_per_replica: int,
    per_instance: int,
) -> Fleet:
    """A fleet of this size, with the latencies of the formulas."""
    warm = replicas if traffic.busy_hours >= 24 else 1
    first_95, first_99 = (first_token_percentile(traffic, pace, replicas, share) for share in (0.95, 0.99))
    return Fleet(
        replicas=replicas,
        replicas_p99=replicas_p99,
        gpus_per_replica=gpus_per_replica,
        instances=math.ceil(replicas / per_instance),
        utilisation=traffic.average_rate * pace.replica_seconds / replicas,
        wait_p95=first_95 - pace.first_token,
        latency_p95=first_95,
        latency_p99=first_99,
        warm_replicas=warm,
        warm_instances=math.ceil(warm / per_instance),
    )
