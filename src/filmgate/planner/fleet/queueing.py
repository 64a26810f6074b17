"""How long a clip waits when `servers` work and clips come at random, alone or in bunches.

Erlang C gives the chance of waiting; the wait beyond it falls off exponentially at the heavy-traffic rate,
stretched by how uneven arrivals and service are (Allen and Cunneen). A bunch occupies several servers at
once, so its chance of waiting is that of a system with as many fewer servers. tests/unit/planner checks this
against a simulation.
"""

import math
from collections.abc import Callable

MOST_SERVERS = 4096


def erlang_c(servers: int, load: float) -> float:
    """Chance that all servers are busy, with `load` = arrivals x service time < servers."""
    if load >= servers:
        return 1.0
    if servers > MOST_SERVERS:
        return 0.0  # so many servers smooth any queue away
    blocked = 1.0
    for k in range(1, servers + 1):
        blocked = load * blocked / (k + load * blocked)
    rho = load / servers
    return blocked / (1 - rho + rho * blocked)


def waiting_chance(servers: int, load: float, bunch: float = 1.0) -> float:
    """Chance that a clip waits, when clips come in bunches of `bunch` on average."""
    rho = load / servers
    if bunch <= 1 or rho >= 1:
        return erlang_c(servers, load)
    fewer = servers / bunch
    if fewer < 1:
        return 1 - (1 - rho) * fewer
    low = int(fewer)
    at_low, at_high = erlang_c(low, rho * low), erlang_c(low + 1, rho * (low + 1))
    return at_low + (at_high - at_low) * (fewer - low)


def wait_percentile(
    rate: float, service: float, servers: int, share: float, bunch: float = 1.0, service_cv2: float = 0.0
) -> float:
    """Seconds that `share` of clips wait at most; infinite where the servers cannot keep up."""
    load = rate * service
    if load >= servers:
        return math.inf
    chance = waiting_chance(servers, load, bunch)
    if chance <= 1 - share:
        return 0.0
    unevenness = (2 * bunch - 1 + service_cv2) / 2
    return math.log(chance / (1 - share)) * service * unevenness / (servers - load)


def servers_for(rate: float, service: float, wait: float, share: float, bunch: float = 1.0) -> int | None:
    """The fewest servers at which `share` of clips wait no longer than `wait`; None beyond reason."""
    return fewest_servers(
        lambda servers: wait_percentile(rate, service, servers, share, bunch) <= wait,
        math.floor(rate * service),
    )


def fewest_servers(is_enough: Callable[[int], bool], too_few: int) -> int | None:
    """The smallest number above `too_few` that is enough, where more is never worse; None beyond reason."""
    low = too_few
    if low >= MOST_SERVERS:
        return None
    extra = 1
    while not is_enough(low + extra):
        extra *= 2
        if low + extra > 2 * MOST_SERVERS:
            return None
    high = low + extra
    low += extra // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high
