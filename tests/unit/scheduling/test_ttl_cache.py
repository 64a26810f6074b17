"""A value that is read every few seconds, and a failure that is remembered for a moment."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from filmgate.errors import QueueUnavailable
from filmgate.scheduling.ttl_cache import TtlCache


class Source:
    """A value that can be read slowly or not at all, and the clock of its cache."""

    def __init__(self):
        self.now, self.reads, self.took, self.error = 100.0, 0, 0.0, None

    def read(self):
        self.reads += 1
        self.now += self.took
        if self.error is not None:
            raise self.error
        return self.reads


@pytest.fixture
def source():
    return Source()


@pytest.fixture
def cache(source):
    return TtlCache(source.read, 2.0, clock=lambda: source.now)


def test_a_value_is_read_again_when_it_is_old_or_expired(source, cache):
    assert (cache.get(), cache.get()) == (1, 1)
    source.now += 2.0
    assert cache.get() == 2
    cache.expire()
    assert cache.get() == 3


def test_reading_takes_at_most_a_tenth_of_the_time(source, cache):
    source.took = 1.0
    cache.get()
    source.now += 8.9
    assert cache.get() == 1
    source.now += 0.1
    assert cache.get() == 2


def test_a_failure_is_remembered_for_a_second(source, cache):
    cache.get()
    source.now, source.took, source.error = 200.0, 5.0, QueueUnavailable("down")
    for _ in range(10):
        with pytest.raises(QueueUnavailable, match="down"):
            cache.get()
    assert source.reads == 2
    source.now, source.error = source.now + 1.0, None
    assert cache.get() == 3


def test_requests_that_wait_for_a_read_fail_with_it(source):
    """They do not wait for the database one after another."""
    is_waiting, may_fail = threading.Event(), threading.Event()

    def read():
        source.reads += 1
        is_waiting.set()
        assert may_fail.wait(60)
        raise QueueUnavailable("down")

    cache = TtlCache(read, 2.0, clock=lambda: source.now)
    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(cache.get) for _ in range(8)]
        assert is_waiting.wait(60)
        may_fail.set()
        assert {type(call.exception(60)) for call in calls} == {QueueUnavailable}
    assert source.reads == 1
