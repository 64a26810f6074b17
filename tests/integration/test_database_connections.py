"""Connections to PostgreSQL end when the server is gone without closing them, as after a failover."""

import os
import socket
import threading
from contextlib import suppress

import pytest
import sqlalchemy as sa

from filmgate.database.engine import Database
from filmgate.scheduling.wakers.notify import NotifyWaker
from filmgate.settings import QueueSettings
from tests.tickets import make_offer


@pytest.fixture
def tcp_url(postgres_url):
    """The database over TCP: the server of the tests listens on a Unix socket only."""
    url = sa.make_url(postgres_url)
    if "host" not in url.query:
        yield postgres_url
        return
    target = f"{url.query['host']}/.s.PGSQL.5432"
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_accept, args=(listener, target), daemon=True).start()
    port = listener.getsockname()[1]
    yield url.set(host="127.0.0.1", port=port, query={}).render_as_string(hide_password=False)
    listener.close()


def _accept(listener, target):
    with suppress(OSError):
        while True:
            client, _ = listener.accept()
            server = socket.socket(socket.AF_UNIX)
            server.connect(target)
            for ends in ((client, server), (server, client)):
                threading.Thread(target=_copy, args=ends, daemon=True).start()


def _copy(source, target):
    with suppress(OSError), target:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_RDWR)


def read_options(connection):
    """How long the kernel waits for a silent server, in seconds: for data, before and between probes."""
    with socket.socket(fileno=os.dup(connection.fileno())) as own:
        options = (socket.TCP_USER_TIMEOUT, socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        data, *probes = (own.getsockopt(socket.IPPROTO_TCP, option) for option in options)
        assert own.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        return (data / 1000, *probes)


def test_every_connection_gives_up_on_a_silent_server(tcp_url):
    database = Database(tcp_url, timeout_seconds=6.0)
    waker = NotifyWaker(database, QueueSettings(waker="notify"))
    try:
        with database.read() as connection:
            assert read_options(connection.connection.driver_connection) == (12.0, 6, 3, 2)
        waker.wait(make_offer(), lambda: False)
        assert read_options(waker._listener) == (12.0, 6, 3, 2)
        assert waker._listener.info.get_parameters()["connect_timeout"] == "6"
    finally:
        waker.close()
        database.close()
