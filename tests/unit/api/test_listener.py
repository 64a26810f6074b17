"""The listening socket accepts in small groups and closes connections of flooding addresses."""

import socket
from contextlib import ExitStack

import pytest

from filmgate.api.http_server import listen
from filmgate.settings import ApiSettings
from tests.waiting import wait_until


@pytest.fixture
def listener():
    with listen(ApiSettings(port=0)) as listener:
        listener.setblocking(False)
        yield listener


def accept_all(listener):
    """What one turn of asyncio's event loop accepts."""
    accepted = []
    while True:
        try:
            accepted.append(listener.accept()[0])
        except BlockingIOError:
            return accepted


def test_a_burst_of_connections_is_accepted_over_several_turns_of_the_event_loop(listener):
    with ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(socket.create_connection(listener.getsockname()))
        turns = []

        def accept():
            turns.append([stack.enter_context(each) for each in accept_all(listener)])
            return sum(map(len, turns)) == 20

        wait_until(accept, interval=0.001)  # a connection may arrive a moment after its client has it
    assert max(map(len, turns)) <= 16


def test_the_connection_of_a_flooding_address_is_closed_and_the_next_one_is_accepted(listener):
    listener.is_flooding = lambda address: address == "127.0.0.2"
    flood = socket.create_connection(listener.getsockname(), timeout=60, source_address=("127.0.0.2", 0))
    calm = socket.create_connection(listener.getsockname(), timeout=60)
    with flood, calm:
        (accepted,) = wait_until(lambda: accept_all(listener))
        with accepted:
            assert accepted.getpeername() == calm.getsockname()
        with pytest.raises(ConnectionResetError):
            flood.recv(1)
