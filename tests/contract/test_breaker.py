"""The breaker that processes share: one row, one probe, whoever asks."""

import threading

import pytest

from filmgate.errors import ProviderThrottled
from filmgate.providers.breaker import Breaker
from filmgate.providers.circuit import Health, Outcome, Phase
from filmgate.settings import RoutingSettings

THROTTLED, GOOD = Outcome.of(ProviderThrottled("slow down"), 0.1), Outcome.of(None, 0.1)
SETTINGS = RoutingSettings(open_seconds=10.0)


@pytest.fixture
def breakers(bench):
    """Two processes' breakers of one provider."""
    return [Breaker(bench.database, "elsewhere", SETTINGS, chance=lambda: 1.0) for _ in range(2)]


def open_it(breaker):
    for _ in range(5):
        breaker.record(THROTTLED, breaker.admit())


def test_what_one_process_sees_every_process_knows(breakers):
    one, other = breakers
    assert other.health() == Health()
    open_it(one)
    assert other.health() == Health(Phase.OPEN)
    assert other.admit() is None


def test_many_processes_at_once_get_one_probe(bench, breakers, clocks):
    open_it(breakers[0])
    clocks.pass_time(10)
    assert breakers[1].health().can_probe
    barrier, permits = threading.Barrier(6), []

    def ask():
        breaker = Breaker(bench.database, "elsewhere", SETTINGS)
        barrier.wait(60)
        permits.append(breaker.admit())

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(permits) == 6
    assert len([permit for permit in permits if permit is not None]) == 1
    assert not breakers[1].health().can_probe


def test_a_good_probe_opens_the_way_for_all_and_a_bad_one_for_nobody(breakers, clocks):
    one, other = breakers
    open_it(one)
    clocks.pass_time(10)
    one.record(THROTTLED, one.admit())
    clocks.pass_time(19)
    assert other.admit() is None
    clocks.pass_time(1)
    permit = other.admit()
    other.record(GOOD, permit)
    assert one.health().phase is Phase.CLOSED
    assert one.admit() is not None


def test_an_unused_probe_is_handed_on(breakers, clocks):
    one, other = breakers
    open_it(one)
    clocks.pass_time(10)
    one.release(one.admit())
    assert other.admit().probe == 2


def test_polls_count_without_a_permit_and_clips_teach_the_pace(breakers):
    one, other = breakers
    for _ in range(5):
        one.record(THROTTLED)
    one.observe(200.0, 100.0)
    assert other.health() == Health(Phase.OPEN, pace=1.2)


def test_the_retry_budget_is_one_for_all_processes(breakers):
    one, other = breakers
    assert [breaker.admit(is_retry=True) is not None for breaker in (one, other, one, other)] == [
        True,
        True,
        True,
        False,
    ]


def test_two_first_words_on_a_provider_make_one_row(bench):
    barrier = threading.Barrier(4)

    def ask():
        breaker = Breaker(bench.database, "new", SETTINGS)
        barrier.wait(60)
        breaker.record(THROTTLED)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    with bench.database.read() as connection:
        rows = connection.exec_driver_sql("SELECT provider, recent FROM breakers").all()
    assert [tuple(row) for row in rows] == [("new", "xxxx")]
