"""The breaker that all processes share: one row and one probe at a time."""

import threading

import pytest

from filmgate.errors import ProviderThrottled
from filmgate.providers.breaker import Breaker
from filmgate.providers.circuit import BreakerHealth, Outcome, Phase
from filmgate.settings import RoutingSettings

THROTTLED, GOOD = Outcome.of(ProviderThrottled("slow down"), 0.1), Outcome.of(None, 0.1)
SETTINGS = RoutingSettings(open_seconds=10.0)


@pytest.fixture
def breakers(bench):
    """The breakers of two processes for one provider."""
    return [Breaker(bench.database, "elsewhere", SETTINGS, chance=lambda: 1.0) for _ in range(2)]


def trip(breaker):
    for _ in range(5):
        breaker.record(THROTTLED, breaker.admit())


def test_all_processes_share_the_state(breakers):
    one, other = breakers
    assert other.health() == BreakerHealth()
    trip(one)
    assert other.health() == BreakerHealth(Phase.OPEN)
    assert other.admit() is None


def test_concurrent_callers_get_one_probe(bench, breakers, clocks):
    trip(breakers[0])
    clocks.pass_time(10)
    assert breakers[1].health().can_probe
    barrier, permits = threading.Barrier(6), []

    def admit():
        breaker = Breaker(bench.database, "elsewhere", SETTINGS)
        barrier.wait(60)
        permits.append(breaker.admit())

    threads = [threading.Thread(target=admit) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(permits) == 6
    assert len([permit for permit in permits if permit is not None]) == 1
    assert not breakers[1].health().can_probe


def test_a_good_probe_closes_it_for_all_processes_and_a_bad_one_for_none(breakers, clocks):
    one, other = breakers
    trip(one)
    clocks.pass_time(10)
    one.record(THROTTLED, one.admit())
    clocks.pass_time(19)
    assert other.admit() is None
    clocks.pass_time(1)
    permit = other.admit()
    other.record(GOOD, permit)
    assert one.health().phase is Phase.CLOSED
    assert one.admit() is not None


def test_a_released_probe_can_be_made_by_another_process(breakers, clocks):
    one, other = breakers
    trip(one)
    clocks.pass_time(10)
    one.release(one.admit())
    assert other.admit().probe == 2


def test_polls_count_without_a_permit_and_finished_clips_update_the_pace(breakers):
    one, other = breakers
    for _ in range(5):
        one.record(THROTTLED)
    one.observe(200.0, 100.0)
    assert other.health() == BreakerHealth(Phase.OPEN, pace=1.2)


def test_all_processes_share_one_retry_budget(breakers):
    one, other = breakers
    assert [breaker.admit(is_retry=True) is not None for breaker in (one, other, one, other)] == [
        True,
        True,
        True,
        False,
    ]


def test_concurrent_first_results_create_one_row(bench):
    barrier = threading.Barrier(4)

    def record():
        breaker = Breaker(bench.database, "new", SETTINGS)
        barrier.wait(60)
        breaker.record(THROTTLED)

    threads = [threading.Thread(target=record) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    with bench.database.read() as connection:
        rows = connection.exec_driver_sql("SELECT provider, recent FROM breakers").all()
    assert [tuple(row) for row in rows] == [("new", "xxxx")]
