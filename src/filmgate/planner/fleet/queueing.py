"""Waiting times in a queue with several servers and random arrivals, single or in batches.

Erlang C gives the probability of waiting. The wait has an exponential tail at the heavy-traffic rate, scaled
by the variability of arrivals (Allen and Cunneen). A batch occupies several servers at once, so
its probability of waiting is that of a system with proportionally fewer servers. tests/unit/planner/fleet
compares these formulas with a simulation.
"""

import math
from collections.abc import Callable
from functools import lru_cache

MAX_SERVERS = 4096
MAX_BATCH_LOAD = 500.0  # a fleet that large is not filled by one batch


def erlang_c(servers: int, load: float) -> float:
    """The probability that all servers are busy; `load` is arrival rate x service time."""
    if load >= servers:
        return 1.0
    if servers > MAX_SERVERS:
        return 0.0  # a queue is negligible at this size
    blocked = 1.0
    for k in range(1, servers + 1):
        blocked = load * blocked / (k + load * blocked)
    rho = load / servers
    return blocked / (1 - rho + rho * blocked)


def wait_probability(servers: int, load: float, batch: float = 1.0) -> float:
    """The probability that an arrival waits; arrivals come in batches of `batch` on average."""
    rho = load / servers
    if batch <= 1 or rho >= 1:
        return erlang_c(servers, load)
    fewer = servers / batch
    if fewer < 1:
        return 1 - (1 - rho) * fewer
    low = int(fewer)
    at_low, at_high = erlang_c(low, rho * low), erlang_c(low + 1, rho * (low + 1))
    return at_low + (at_high - at_low) * (fewer - low)


def wait_percentile(rate: float, service: float, servers: int, share: float, batch: float = 1.0) -> float:
    """The wait in seconds that `share` of arrivals do not exceed; infinite if the servers are overloaded."""
    load = rate * service
    if load >= servers:
        return math.inf
    together = batch_wait(load, service, servers, share, batch)
    probability = wait_probability(servers, load, batch)
    if probability <= 1 - share:
        return together
    variability = (2 * batch - 1) / 2  # every unit of work takes equally long
    return max(together, math.log(probability / (1 - share)) * service * variability / (servers - load))


def batch_wait(load: float, service: float, servers: int, share: float, batch: float) -> float:
    """The wait behind the clips of one's own batch and of the batches in service.

    The last clip of a batch waits even in an idle fleet that is smaller than the batch.
    """
    if batch <= 1 or load > MAX_BATCH_LOAD:
        return 0.0
    rounds = place_in_service(round(load, 6), batch, share) / servers - 1
    if load < 2 * batch:  # the batch starts together, so the next clips start together
        rounds = math.ceil(rounds)
    return max(0.0, rounds) * service


@lru_cache(maxsize=256)
def place_in_service(load: float, batch: float, share: float) -> int:
    """The quantile of a clip's place behind all clips in service and the earlier ones of its batch.

    Batches of geometric size that arrive at random make the number in service a Polya-Aeppli variable.
    """
    theta, lam = 1 - 1 / batch, load / batch
    before, now = 0.0, math.exp(-lam)  # the probabilities of n - 1 and n clips in service
    place, mass, n = 0.0, 0.0, 0
    while mass < share:
        place = theta * place + (1 - theta) * now
        mass += place
        n += 1
        before, now = now, ((2 * theta * (n - 1) + lam * (1 - theta)) * now - theta**2 * (n - 2) * before) / n
    return n


def fewest_servers(is_enough: Callable[[int], bool], too_few: int) -> int | None:
    """The smallest number above `too_few` that is enough, or None. `is_enough` must be monotone."""
    low = too_few
    if low >= MAX_SERVERS:
        return None
    extra = 1
    while not is_enough(low + extra):
        extra *= 2
        if low + extra > 2 * MAX_SERVERS:
            return None
    high = low + extra
    low += extra // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high
