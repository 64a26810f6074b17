"""The queueing formulas, compared with a simulation of the same queue."""

import heapq
import math
import random

import pytest

from filmgate.planner.fleet.queueing import erlang_c, fewest_servers, wait_percentile, wait_probability

SERVICE = 60.0


def simulate(rate, servers, batch, clips=60_000, seed=7):
    """Sorted waits of random arrivals in batches of geometric size, first come first served."""
    draw = random.Random(seed)
    free = [0.0] * servers
    now, waits = 0.0, []
    while len(waits) < clips:
        now += draw.expovariate(rate / batch)
        size = 1 if batch == 1 else 1 + int(math.log(1 - draw.random()) / math.log(1 - 1 / batch))
        for _ in range(size):
            start = max(heapq.heappop(free), now)
            waits.append(start - now)
            heapq.heappush(free, start + SERVICE)
    return sorted(waits)


@pytest.mark.parametrize("servers", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("load", [0.5, 0.7, 0.85])
def test_single_arrivals_wait_as_long_as_in_the_simulation(servers, load):
    rate = servers * load / SERVICE
    waits = simulate(rate, servers, 1)
    for share in (0.95, 0.99):
        seen = waits[int(share * len(waits))]
        predicted = wait_percentile(rate, SERVICE, servers, share)
        assert SERVICE + predicted == pytest.approx(SERVICE + seen, rel=0.15)


@pytest.mark.parametrize("servers", [2, 4, 8, 16])
@pytest.mark.parametrize("load", [0.5, 0.7])
def test_batch_arrivals_wait_as_long_as_in_the_simulation(servers, load):
    rate = servers * load / SERVICE
    waits = simulate(rate, servers, 4)
    seen = waits[int(0.95 * len(waits))]
    predicted = wait_percentile(rate, SERVICE, servers, 0.95, batch=4)
    assert SERVICE + predicted == pytest.approx(SERVICE + seen, rel=0.25)


def test_erlang_c_matches_textbook_values():
    assert erlang_c(1, 0.5) == pytest.approx(0.5)
    assert erlang_c(10, 8.0) == pytest.approx(0.4092, rel=1e-3)


def test_the_wait_is_infinite_when_the_servers_are_overloaded():
    assert wait_percentile(1.0, 10.0, 10, 0.95) == math.inf
    assert erlang_c(3, 3.0) == 1.0


def test_batch_arrivals_wait_more_often_than_single_arrivals():
    assert wait_probability(8, 4.0, batch=4) > wait_probability(8, 4.0)


def servers_for(rate, wait):
    """The fewest servers at which 95 % of arrivals wait at most `wait` seconds."""
    return fewest_servers(
        lambda servers: wait_percentile(rate, SERVICE, servers, 0.95) <= wait, math.floor(rate * SERVICE)
    )


@pytest.mark.parametrize("wait", [0.0, 5.0, 60.0, 600.0])
def test_the_fewest_servers_are_enough_and_one_less_is_not(wait):
    rate = 3.3 / SERVICE
    servers = servers_for(rate, wait)
    assert wait_percentile(rate, SERVICE, servers, 0.95) <= wait
    assert wait_percentile(rate, SERVICE, servers - 1, 0.95) > wait


def test_there_is_no_answer_above_the_maximum_number_of_servers():
    assert servers_for(1e6, 1.0) is None
