"""Random bytes on real sockets: no 5xx, no error in the log, and the server goes on serving."""

import logging
import os
import random
import re
import select
import socket
import time

import httpx
import pytest

from tests.conftest import FUZZ
from tests.raw_requests import damaged, valid_requests
from tests.service import running, settings_for
from tests.waiting import LIMIT_SECONDS, wait_until

BATCHES = 10 * FUZZ
BATCH = 40
READ_SECONDS = 0.12
EXPECTED = {200, 400, 401, 404}
SEED = int(os.environ.get("FILMGATE_TEST_FUZZ_SEED", "15"))
STATUS_LINE = re.compile(rb"HTTP/1\.1 ([1-5]\d\d) [^\r\n]*\r\n")


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    given = {"admission__promise_seconds": 1e9, "limits__header_seconds": 1, "limits__body_seconds": 1}
    with running(settings_for(tmp_path_factory.mktemp("raw"), **given)) as service:
        with service.client() as client:
            video = client.post("/v1/videos", json={"prompt": "x"}).json()["id"]
        service.hand().make()
        yield service, valid_requests(service.key, video)


def test_every_valid_request_is_understood(target):
    service, requests = target
    responses = exchange(service, requests, LIMIT_SECONDS, is_complete=lambda data: b"\r\n\r\n" in data)
    statuses = [int(STATUS_LINE.match(response)[1]) for response in responses]
    assert {status // 100 for status in statuses} == {2, 4}
    assert statuses.count(200) >= 10


def test_no_damaged_request_is_an_error_of_the_server(target, caplog):
    service, requests = target
    source = random.Random(SEED)
    statuses = set()
    with caplog.at_level(logging.ERROR):
        for number in range(20 * BATCHES):
            # On a slow machine, responses that take a moment may miss the time limit of every batch.
            if number >= BATCHES and statuses >= EXPECTED:
                break
            batch = [damaged(source, source.choice(requests)) for _ in range(BATCH)]
            for sent, response in zip(batch, exchange(service, batch, READ_SECONDS), strict=True):
                seen = check(sent, response, f"seed {SEED}, batch {number}")
                statuses.update(seen)
    assert [record.getMessage() for record in caplog.records] == []
    assert statuses >= EXPECTED
    assert httpx.get(f"{service.url}/healthz").status_code == 200
    wait_until(lambda: service.edge.connections._value.get() == 0)
    wait_until(lambda: service.edge.uploads.total + service.edge.watchers.total == 0)


def check(sent, response, where):
    """The statuses of a response: none, or valid HTTP without a 5xx."""
    if not response:
        return []
    assert STATUS_LINE.match(response), (where, sent, response[:200])
    first = int(STATUS_LINE.match(response)[1])
    assert first < 500, (where, sent, response[:500])
    assert b"Traceback" not in response, (where, sent)
    return [first]


def exchange(service, requests, seconds, is_complete=lambda _data: False):
    """Send every request on its own connection; what arrived on each within this time."""
    host, port = service.url.removeprefix("http://").split(":")
    sockets = [socket.create_connection((host, int(port)), timeout=60) for _ in requests]
    received = dict.fromkeys(sockets, b"")
    for each, request in zip(sockets, requests, strict=True):
        try:
            each.sendall(request)
        except OSError:
            continue
    waiting, deadline = set(sockets), time.monotonic() + seconds
    while waiting and (left := deadline - time.monotonic()) > 0:
        for each in select.select(list(waiting), [], [], left)[0]:
            try:
                data = each.recv(65536)
            except ConnectionResetError:
                data = b""
            received[each] += data
            if not data or is_complete(received[each]):
                waiting.discard(each)
    for each in sockets:
        each.close()
    return [received[each] for each in sockets]
