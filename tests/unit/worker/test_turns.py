"""Turns on the device: one job has it, the next one is prepared, a retry is alone."""

import threading
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry

from filmgate.scheduling.history import DeviceSeconds
from filmgate.worker.turns import MAX_JOBS, Device, DeviceMeter

STOP = lambda: True  # noqa: E731 - the waits below must not block


@pytest.fixture
def device():
    return Device()


def has_room(device):
    return device._has_room()


def test_the_first_job_has_the_device_at_once_and_the_next_is_leased_when_it_decodes(device):
    first = device.admit()
    assert (first.is_taken, has_room(device)) == (True, False)
    first.announce_end()
    assert has_room(device)
    second = device.admit()
    assert (second.is_taken, has_room(device)) == (False, False), "one job is prepared, not two"
    first.leave()
    second.take()
    assert (second.is_taken, first.is_taken, device.is_busy) == (True, True, True)
    first.end()
    second.announce_end()
    assert has_room(device)


def test_a_waiting_job_takes_the_device_as_soon_as_it_is_left(device):
    first = device.admit()
    first.announce_end()
    second = device.admit()
    waiter = threading.Thread(target=second.take)
    waiter.start()
    first.leave()
    waiter.join(60)
    assert second.is_taken


def test_a_job_that_steps_aside_has_its_turn_after_one_that_returns_and_before_new_ones(device):
    first = device.admit()
    first.leave()
    second = device.admit()
    second.step_aside()
    assert (second.is_taken, device.is_busy, has_room(device)) == (False, False, False)
    first.take()
    first.leave()
    second.take()
    assert (second.is_taken, device.next) == (True, None)
    first.step_aside()
    assert device.current is second


def test_a_waiting_job_that_must_stop_raises_and_makes_room(device):
    first = device.admit()
    first.announce_end()
    second = device.admit()

    def check():
        raise KeyboardInterrupt

    second.check = check
    with pytest.raises(KeyboardInterrupt):
        second.take()
    second.end()
    assert (second.is_taken, has_room(device), device.jobs) == (False, True, 1)


def test_a_retry_waits_until_it_is_the_only_job_and_nothing_is_prepared_beside_it(device):
    first = device.admit()
    first.announce_end()
    retry = device.admit(is_alone=True)
    first.leave()
    waiter = threading.Thread(target=retry.take)
    waiter.start()
    assert not retry.is_taken, "the first job is still encoded and stored"
    first.end()
    waiter.join(60)
    retry.announce_end()
    assert (retry.is_taken, has_room(device)) == (True, False)
    retry.end()
    assert has_room(device)


@pytest.mark.parametrize("is_alone", [False, True])
def test_a_job_that_has_left_takes_the_device_again_behind_the_job_that_has_it(device, is_alone):
    first = device.admit(is_alone=is_alone)
    first.take()
    first.leave()
    second = device.admit()
    second.announce_end()
    third = device.admit()
    waiter = threading.Thread(target=first.take)
    waiter.start()
    assert device.current is second
    second.leave()
    waiter.join(60)
    assert (device.current, device.next) == (first, third)
    first.leave()
    third.take()
    assert (device.current, device.next) == (third, None)


def test_no_job_takes_the_device_while_it_is_reserved_for_the_canary(device):
    """A job whose fast decoder fails takes the device again after it has left."""
    first = device.admit()
    first.leave()
    waiter = threading.Thread(target=first.take)
    with device.reserved(lambda: False) as is_reserved:
        waiter.start()
        waiter.join(0.3)
        assert (is_reserved, waiter.is_alive(), device.current is first) == (True, True, False)
    waiter.join(60)
    assert device.current is first
    with device.reserved(STOP) as is_reserved:
        assert not is_reserved, "a worker that drains does not wait for the job"
    assert device.current is first


def test_a_store_that_fails_does_not_collect_leases(device):
    """Jobs that cannot be stored keep their places: the worker stops leasing."""
    for _ in range(MAX_JOBS):
        assert has_room(device)
        device.admit().leave()
    assert not has_room(device)
    device.wait_for_room(STOP)
    device.wait_until_left(STOP)


def test_ending_twice_gives_back_one_place(device):
    turn = device.admit()
    turn.end()
    turn.end()
    assert device.jobs == 0


def test_a_reading_while_a_job_takes_the_device_counts_the_gap_once():
    now, readings = [0.0], []
    meter = DeviceMeter(CollectorRegistry(), clock=lambda: now[0])
    reader = threading.Thread(target=lambda: readings.append(meter.read()))

    def read_meanwhile(_seconds):
        reader.start()
        reader.join(0.2)  # it waits for `take`; without a lock, it would read half of the change

    for change in (meter.start, meter.take, meter.leave):
        change()
        now[0] += 10.0
    meter._gap = SimpleNamespace(observe=read_meanwhile)
    meter.take()
    reader.join(60)
    assert readings == [meter.read()] == [DeviceSeconds(busy=10.0, idle=20.0, gap=10.0, gaps=1)]
