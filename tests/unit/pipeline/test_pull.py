"""A function that emits items becomes a generator, and stops when the generator is closed."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from threading import Event, Lock, current_thread

import pytest

from filmgate.errors import Cancelled, DeviceError
from filmgate.pipeline.transfer.channel import pull


def start(produce, capacity=2, stop=lambda: None):
    return pull(produce, capacity=capacity, stop=stop, name="filmgate-test")


def test_everything_emitted_arrives_in_order(no_thread_left):
    assert list(start(lambda emit: [emit(n) for n in range(50)])) == list(range(50))


def test_an_error_is_raised_after_the_items_before_it(no_thread_left):
    def produce(emit):
        emit(1)
        raise ValueError("broken")

    stream = start(produce)
    assert next(stream) == 1
    with pytest.raises(ValueError, match="broken"):
        next(stream)


def test_the_producer_is_at_most_its_capacity_ahead(no_thread_left):
    emitted, is_waiting, lock = [], Event(), Lock()

    def produce(emit):
        for n in range(10):
            emit(n)
            with lock:
                emitted.append(n)
                if len(emitted) == 3:
                    is_waiting.set()

    stream = start(produce, capacity=2)
    assert next(stream) == 0
    assert is_waiting.wait(60)
    with lock:
        assert len(emitted) <= 4
    assert list(stream) == list(range(1, 10))


def test_closing_stops_the_producer_and_waits_for_it(no_thread_left):
    stop, ends = Event(), []

    def produce(emit):
        try:
            while True:
                emit(1)
        except Cancelled:
            ends.append(stop.is_set())
            raise

    stream = start(produce, stop=stop.set)
    assert next(stream) == 1
    stream.close()
    assert ends == [True]


ENDS_EARLY = """
from filmgate.pipeline.transfer.channel import pull

def produce(emit):
    try:
        while True:
            emit(1)
    finally:
        print("ended")

items = pull(produce, capacity=1, stop=lambda: None)
next(items)
"""


def test_a_program_that_ends_before_the_generator_ends_its_producer_first():
    """A script that reads one chunk of filmgate.stream_frames aborted: its thread was still in torch."""
    done = subprocess.run([sys.executable, "-c", ENDS_EARLY], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("ended\n", "")


@pytest.mark.parametrize(
    ("error", "is_raised", "is_logged"),
    [(DeviceError("the GPU failed"), True, False), (OSError("disk"), False, True), (None, False, False)],
)
def test_an_error_after_the_reader_stopped_is_not_lost(error, is_raised, is_logged, caplog, no_thread_left):
    def produce(emit):
        try:
            while True:
                emit(1)
        except Cancelled:
            if error is not None:
                raise error from None
            raise

    stream = start(produce)
    assert next(stream) == 1
    with pytest.raises(DeviceError, match="the GPU failed") if is_raised else nullcontext():
        stream.close()
    assert [record.cause for record in caplog.records] == ([error] if is_logged else [])


def test_producers_share_the_threads_they_are_given():
    names = []

    def produce(emit):
        names.append(current_thread().name)
        emit(1)
        raise ValueError("broken")

    with ThreadPoolExecutor(1, thread_name_prefix="filmgate-test") as threads:
        for _ in range(2):
            stream = pull(produce, capacity=2, stop=lambda: None, threads=threads)
            assert next(stream) == 1
            with pytest.raises(ValueError, match="broken"):
                next(stream)
    assert names == ["filmgate-test_0"] * 2
