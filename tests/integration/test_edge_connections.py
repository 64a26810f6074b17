"""Connections: how many there may be, how long they may take, and which requests are ambiguous."""

import re
import socket
from contextlib import suppress

import httpx
import pytest

from tests.service import CLIP, running, settings_for
from tests.waiting import wait_until

GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
LIMITS = {"limits__max_connections": 24, "limits__max_connections_per_address": 16}
SHORT = {f"limits__{part}_seconds": 0.6 for part in ("header", "body", "send")}


@pytest.fixture(scope="module")
def edge(tmp_path_factory):
    with running(settings_for(tmp_path_factory.mktemp("edge"), **LIMITS)) as service:
        yield service


@pytest.fixture(scope="module")
def hasty(tmp_path_factory):
    """A server with short time limits, which a request of a busy machine may exceed."""
    with running(settings_for(tmp_path_factory.mktemp("hasty"), **LIMITS, **SHORT)) as service:
        yield service


def connect(service, source="127.0.0.1"):
    host, port = service.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=60, source_address=(source, 0))


def read_all(connection):
    """Everything until the server closes the connection."""
    parts = []
    try:
        while data := connection.recv(65536):
            parts.append(data)
    except ConnectionResetError:
        parts.append(b"")
    return b"".join(parts)


def ask(service, request):
    with connect(service) as connection:
        connection.sendall(request)
        return read_all(connection)


@pytest.mark.parametrize(
    ("request_bytes", "message"),
    [
        (b"", b"headers"),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ", b"headers"),
        (
            b"POST /v1/videos HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer KEY\r\nContent-Length: 9\r\n\r\n{",
            b"body",
        ),
    ],
)
def test_a_request_that_does_not_arrive_in_time_is_a_408(hasty, request_bytes, message):
    response = ask(hasty, request_bytes.replace(b"KEY", hasty.key.encode()))
    assert response.startswith(b"HTTP/1.1 408 ")
    assert b"the " + message + b" of the request" in response


def test_a_header_that_drips_does_not_extend_the_time_limit(hasty):
    with connect(hasty) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        connection.settimeout(0.05)
        received = b""
        for _ in range(600):  # until the test has waited 30 s for the response
            with suppress(BrokenPipeError, ConnectionResetError):  # the response may be there already
                connection.sendall(b"y")
            with suppress(TimeoutError):
                received = connection.recv(65536)
                break
    assert received.startswith(b"HTTP/1.1 408 ")


def test_half_sent_headers_do_not_lock_out_other_callers(hasty):
    attackers = [connect(hasty, f"127.0.0.{2 + number % 2}") for number in range(60)]
    for attacker in attackers:
        try:
            attacker.sendall(b"GET /healthz HTTP/1.1\r\n")
        except OSError:
            continue
    assert httpx.get(f"{hasty.url}/healthz").status_code == 200
    with hasty.client() as client:
        metrics = client.get("/metrics").text
    assert float(re.search(r"^filmgate_http_connections (\S+)", metrics, re.MULTILINE)[1]) <= 24
    assert 'filmgate_http_refused_total{reason="connections"}' in metrics
    for attacker in attackers:
        attacker.close()


def test_one_address_cannot_take_every_connection(edge):
    video = _queued(edge)
    head = f"GET /v1/videos/{video}/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {edge.key}\r\n\r\n"
    watchers = []
    for _ in range(16):
        watchers.append(watcher := connect(edge, "127.0.0.2"))
        watcher.sendall(head.encode())
        assert watcher.recv(65536).startswith(b"HTTP/1.1 200")
    with connect(edge, "127.0.0.2") as refused:
        assert read_all(refused).startswith(b"HTTP/1.1 429 ")
    assert httpx.get(f"{edge.url}/healthz").status_code == 200
    for watcher in watchers:
        watcher.close()
    wait_until(lambda: edge.edge.watchers.total == 0)
    with edge.client() as client:
        client.post(f"/v1/videos/{video}/cancel")


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/videos HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/videos HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 101 + b"\r\n",
        b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /v1/videos?model=%00 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    ],
)
def test_an_ambiguous_or_malformed_request_is_a_400_and_the_connection_is_closed(edge, request_bytes):
    response = ask(edge, request_bytes + GET)
    assert response.startswith(b"HTTP/1.1 400 ")
    assert response.count(b"HTTP/1.1 ") == 1
    assert b'"code": "invalid_request"' in response


def test_a_pipelined_request_is_not_answered(edge):
    response = ask(edge, GET + GET + GET)
    assert response.count(b"HTTP/1.1 200") == 1


def test_a_client_that_leaves_after_a_pipelined_request_is_noticed(edge):
    video = _queued(edge)
    head = f"GET /v1/videos/{video}/stream HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {edge.key}\r\n\r\n"
    with connect(edge) as viewer:
        viewer.sendall(head.encode() + GET)
        assert wait_until(lambda: edge.edge.streams.total == 1)
    assert wait_until(lambda: edge.edge.streams.total == 0)
    with edge.client() as client:
        client.post(f"/v1/videos/{video}/cancel")


def test_a_malformed_chunk_ends_the_request_without_an_error_of_the_server(edge, caplog):
    head = f"POST /v1/videos HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {edge.key}\r\n"
    response = ask(edge, head.encode() + b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"pro\r\nzz\r\n')
    assert response.startswith(b"HTTP/1.1 400 ")
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_client_that_does_not_read_is_disconnected(hasty):
    video = _queued(hasty)
    hasty.hand().make(CLIP * 80)
    head = f"GET /v1/videos/{video}/content HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {hasty.key}\r\n\r\n"
    with connect(hasty) as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        before = _refused(hasty, "timeout")
        reader.sendall(head.encode())
        assert wait_until(lambda: _refused(hasty, "timeout") > before)
        assert wait_until(lambda: hasty.edge.connections._value.get() == 0)


def test_a_connection_is_reused_for_many_requests(edge):
    with httpx.Client(base_url=edge.url) as client:
        for _ in range(20):
            assert client.get("/healthz").status_code == 200
        (pooled,) = client._transport._pool.connections
        assert "20" in pooled.info()


def _queued(service):
    with service.client() as client:
        return client.post("/v1/videos", json={"prompt": "x"}).json()["id"]


def _refused(service, reason):
    return service.edge._refused.labels(reason)._value.get()
