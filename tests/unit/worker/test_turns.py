"""Turns on the device: one job has it, the next one is prepared, a retry is alone."""

import threading

import pytest

from filmgate.worker.turns import MAX_JOBS, Device

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
