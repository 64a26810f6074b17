"""Replicas of a language model for requests that arrive at random.

A replica answers a batch of sequences at once, so all replicas together are a queue with one server per
sequence, whose service time is a whole answer at full batch. Prompts are prefilled one at a time on each
replica: a second queue with one server per replica. The first token waits in both queues. The sum of the two
percentiles is slightly higher than the percentile of the sum.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from filmgate.planner.fleet.queueing import MAX_SERVERS, fewest_servers, wait_percentile
from filmgate.planner.fleet.sizing import MAX_UTILISATION
from filmgate.planner.fleet.traffic import Traffic
from filmgate.planner.llm.loaded import Load, prefill_seconds, token_seconds
from filmgate.planner.llm.memory import llm_budget, usable_bytes
from filmgate.planner.llm.step_time import Serving

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

    def slower(self, factor: float) -> "ReplicaPace":
        """The pace when every step takes `factor` times as long."""
        return ReplicaPace(
            self.batch, self.first_token * factor, self.between_tokens * factor, self.request * factor
        )


@dataclass(frozen=True, slots=True)
class RequestDemand:
    """The requests of a fleet: when they come, the pace of a replica, and the limit on the first token.

    `pace_high` is the upper end of the interval of `pace`. `has_target`: the first token or the time between
    tokens has a limit.
    """

    traffic: Traffic
    pace: ReplicaPace
    pace_high: ReplicaPace
    ttft_seconds: float | None = None
    has_target: bool = True


def largest_batch(
    serving: Serving,
    most: Load,
    tbt_seconds: float | None,
    safety_factor: float,
    constants: Mapping[str, float],
) -> int:
    """The most sequences up to those of `most` that fit the memory and keep the time between tokens.

    At least one.
    """

    def is_allowed(batch: int) -> bool:
        held = llm_budget(serving, most.prompt + most.answer, batch, safety_factor, most.cached).peak_bytes
        pace = token_seconds(serving, replace(most, sequences=batch), constants)
        return (tbt_seconds is None or pace <= tbt_seconds) and held <= usable_bytes(serving)

    low, high = 1, most.sequences + 1
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


def fewest_possible(demand: RequestDemand) -> int:
    """Replicas that are at most MAX_UTILISATION busy in the busiest hour: no fleet needs fewer."""
    pace = demand.pace_high
    busy = demand.traffic.peak_rate * max(pace.replica_seconds, pace.first_token)
    return max(1, math.ceil(busy / MAX_UTILISATION))


def pace_of(serving: Serving, load: Load, constants: Mapping[str, float]) -> ReplicaPace:
    """The pace of a replica whose batch is full: its prompts are prefilled while the others decode."""
    first = prefill_seconds(serving, load, constants)
    between = token_seconds(serving, load, constants)
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


@lru_cache(maxsize=4096)
def fewest_by_formulas(demand: RequestDemand, share: float = 0.95) -> int | None:
    """The fewest replicas whose first token is in time for `share` of the requests, at the upper end.

    None if there is no such number. simulation.py adds the replicas that the formulas lack.
    """
    stable, limit = fewest_possible(demand), demand.ttft_seconds
    if limit is None:
        return stable if stable <= MAX_SERVERS else None
    return fewest_servers(
        lambda n: first_token_percentile(demand.traffic, demand.pace_high, n, share) <= limit, stable - 1
    )
