"""What one caller may take from the others: bodies, requests, logins, streams and uploads."""

import io
import json
import logging
import socket
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from filmgate.api.services import SLOW_THREADS, THREADS
from filmgate.errors import InvalidImage
from filmgate.telemetry.logs import JsonFormatter
from filmgate.tenants.base import Scope
from tests.images import png
from tests.service import CLIP, running, settings_for
from tests.waiting import wait_until

FORM = {"content-type": "application/x-www-form-urlencoded"}
MULTIPART = b'--b\r\nContent-Disposition: form-data; name="prompt"\r\n\r\nx\r\n--b--\r\n'
LIMITS = {
    "limits__tenant_requests_per_second": 0.01,
    "limits__tenant_request_burst": 12,
    "limits__failed_logins_per_minute": 6,
    "limits__max_watchers_per_tenant": 2,
    "limits__max_streams_per_tenant": 2,
}


@pytest.fixture(scope="module")
def limited(tmp_path_factory):
    with running(settings_for(tmp_path_factory.mktemp("limited"), **LIMITS)) as service:
        yield service


def error_of(response):
    return response.status_code, response.json()["error"]["code"]


@pytest.mark.parametrize("kind", ["application/json", FORM["content-type"]])
@pytest.mark.parametrize("path", ["/v1/videos", "/v1/plan", "/v1/tenants"])
def test_a_large_body_that_is_not_multipart_is_refused_unread(service, path, kind):
    # Only the headers are sent: the response cannot have waited for the body.
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {service.key}\r\n"
        f"Content-Type: {kind}\r\nContent-Length: 8000000\r\n\r\n"
    )
    assert b"413 " in ask(service, head.encode())[:20]


def nested(depth):
    return [nested(depth - 1)] if depth else "x"


@pytest.mark.parametrize("value", [{f"k{n}": n for n in range(5000)}, nested(101)])
def test_too_many_values_are_refused_before_they_are_validated(client, value):
    response = client.post("/v1/videos", json={"prompt": "x", "input_reference": value})
    assert error_of(response) == (400, "invalid_value")
    assert "more than 100 values" in response.json()["error"]["message"]


def test_too_many_values_are_refused_before_they_are_parsed(client):
    text = b'{"prompt": "x", ' + b",".join(b'"k%d": 1' % number for number in range(101)) + b", no JSON"
    response = client.post("/v1/videos", content=text, headers={"content-type": "application/json"})
    assert "more than 100 values" in response.json()["error"]["message"]
    commas = client.post("/v1/videos", json={"prompt": 'a ball, "red", ' * 200, "seconds": "1"})
    assert commas.status_code == 200
    client.post(f"/v1/videos/{commas.json()['id']}/cancel")


def test_text_in_a_multipart_body_is_limited_as_a_whole(service, client):
    part = "x" * (service.settings.limits.max_form_bytes // 10)
    files = {f"field{n}": (None, part) for n in range(11)}
    assert error_of(client.post("/v1/videos", files=files)) == (413, "payload_too_large")


@pytest.mark.parametrize(
    ("content", "headers"),
    [
        (b"a=1&" * 20_000, FORM),
        (b"--b\r\n\r\n", {"content-type": "multipart/form-data; boundary=b"}),
        (MULTIPART, {"content-type": "multipart/form-data; boundary=b; charset=undefined"}),
        (MULTIPART, {"content-type": "multipart/form-data; boundary=b; charset=hex"}),
        (MULTIPART, {"content-type": "multipart/form-data; boundary=b; charset=unknown"}),
        (b"", {"content-type": "multipart/form-data"}),
        (b'{"prompt": "\\ud800"}', {}),
        (b'{"prompt": 1e999}', {}),
        (b"{}", {"host": "["}),
        (b"{}", {"host": "[::1", "origin": "http://["}),
    ],
)
def test_a_malformed_request_is_a_400(client, content, headers):
    response = client.post("/v1/videos", content=content, headers=headers)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["code"] in ("invalid_value", "invalid_request")


def test_a_broken_host_or_origin_is_not_local(tmp_path):
    with running(settings_for(tmp_path, api__open=True)) as service:
        for headers in ({"host": "[::1"}, {"origin": "http://["}):
            assert httpx.get(f"{service.url}/v1/videos", headers=headers).status_code in (400, 401)


@pytest.mark.parametrize(
    "route",
    [
        "POST /v1/videos",
        "POST /v1/videos/edits",
        "POST /v1/videos/x/remix?limit=x",
        "POST /v1/plan",
        "POST /v1/tenants",
        "PATCH /v1/tenants/local",
        "POST /v1/tenants/local/rotate",
    ],
)
def test_without_a_key_nothing_of_the_body_is_looked_at(service, route):
    head = f"{route} HTTP/1.1\r\nHost: x\r\nContent-Type: nonsense\r\nContent-Length: 99999999\r\n\r\n"
    assert b"401 " in ask(service, head.encode())[:20]


def test_invented_methods_do_not_become_labels(service, client):
    for number in range(20):
        assert client.request(f"INVENTED{number}", "/v1/videos").status_code == 405
    assert "INVENTED" not in client.get("/metrics").text


def test_an_upload_waits_encrypted_on_disk_and_disappears(service, client, monkeypatch):
    files, real = [], tempfile.TemporaryFile

    def recorded(*args, **options):
        files.append(real(*args, **options))
        return files[-1]

    monkeypatch.setattr(tempfile, "TemporaryFile", recorded)
    image = png(64, 64)
    seen = []

    def refuse(upload, _settings):
        seen.append(_content(files[0]))
        assert upload.data == image
        raise InvalidImage("seen", option=upload.option)

    monkeypatch.setattr("filmgate.admission.sources.clean_image", refuse)
    body = {"data": {"prompt": "x"}, "files": {"input_reference": ("a.png", image, "image/png")}}
    assert client.post("/v1/videos", **body).status_code == 400
    assert len(seen[0]) == len(image)
    assert image[:8] not in seen[0]
    assert files[0].closed
    assert service.edge.uploads.total == 0


def _content(file):
    file.seek(0)
    return file.read()


def test_a_tenant_that_sends_too_many_requests_gets_a_429_and_others_do_not(limited):
    busy, calm = limited.add_tenant("busy"), limited.add_tenant("calm")
    with limited.client(busy) as client, limited.client(calm) as other:
        responses = [client.get("/v1/models") for _ in range(13)]
        assert [response.status_code for response in responses[:12]] == [200] * 12
        assert error_of(responses[12]) == (429, "rate_limit_exceeded")
        assert 1 <= int(responses[12].headers["retry-after"]) <= 100
        assert other.get("/v1/models").status_code == 200
    assert 'filmgate_http_refused_total{reason="tenant rate"} 1.0' in _metrics(limited)


def test_requests_without_the_scope_count_too(limited):
    reading = limited.add_tenant("reading", scopes=frozenset({Scope.READ}))
    with limited.client(reading) as client:
        answers = [error_of(client.post("/v1/videos", json={"prompt": "x"})) for _ in range(13)]
    assert answers == [(403, "insufficient_scope")] * 12 + [(429, "rate_limit_exceeded")]


def test_failed_logins_are_logged_and_limited_while_known_keys_work(limited):
    lines = io.StringIO()
    handler = logging.StreamHandler(lines)
    handler.setFormatter(JsonFormatter())
    logging.getLogger("filmgate.api").addHandler(handler)
    known = limited.add_tenant("known")
    with limited.client(known) as good, _from("127.0.0.2", limited, "fg_guess_x") as bad:
        assert good.get("/v1/models").status_code == 200
        codes = [bad.get("/v1/models").status_code for _ in range(8)]
        assert codes == [401] * 6 + [429] * 2
        with _from("127.0.0.2", limited, known) as same:
            assert same.get("/v1/models").status_code == 200
            assert same.get("/healthz").status_code == 200
    logging.getLogger("filmgate.api").removeHandler(handler)
    logged = [json.loads(line) for line in lines.getvalue().splitlines()]
    failed = [line for line in logged if line["message"] == "login failed"]
    assert [line["client_address"] for line in failed] == ["127.0.0.2"] * 6
    assert "fg_guess" not in lines.getvalue()


def test_an_address_that_sends_too_many_requests_gets_a_429_and_a_flood_is_disconnected(tmp_path):
    rates = {"limits__address_requests_per_second": 0.001, "limits__address_request_burst": 3}
    with running(settings_for(tmp_path, **rates)) as service:
        codes = [httpx.get(f"{service.url}/v1/models").status_code for _ in range(4)]
        assert codes == [401, 401, 401, 429]
        assert httpx.get(f"{service.url}/healthz").status_code == 200
        # Another address of this machine.
        with _from("127.0.0.2", service, "fg_none") as other:
            assert other.get("/v1/models").status_code == 401
            # Refusals are not forgotten meanwhile, however slow the machine is.
            service.edge._refusals._clock = lambda now=time.monotonic(): now
            for _ in range(60):
                service.edge.take_address("127.0.0.2")
            # The open connection is closed with the response, a new one at once.
            assert other.get("/v1/models").headers["connection"] == "close"
            with pytest.raises(httpx.TransportError):
                other.get("/healthz")
        assert httpx.get(f"{service.url}/healthz").status_code == 200


@pytest.mark.parametrize(
    ("path", "prompt", "status"),
    [("/v1/videos", "ball", 200), ("/v1/videos/estimate", "a naked child", 400)],
    ids=["creates", "rejected estimates, which are in the audit log"],
)
def test_writes_of_one_tenant_do_not_take_the_threads_of_the_others(service, path, prompt, status):
    tenant = f"writing-{status}"
    writing = service.add_tenant(tenant)

    def write(number):
        with service.client(writing) as client:
            return client.post(path, json={"prompt": f"{prompt} {number}", "seconds": "1"}).status_code

    with ThreadPoolExecutor(THREADS + 4) as pool:
        # Nobody can write: every request waits on its thread.
        with service.services.queue._database.write():
            writes = [pool.submit(write, number) for number in range(THREADS + 4)]
            wait_until(lambda: len(service.services.writes._waiting.get(tenant, ())) == THREADS)
            with service.client() as client:
                assert client.get("/v1/videos").status_code == 200
        assert {each.result() for each in writes} == {status}


def test_downloads_of_one_tenant_do_not_take_the_threads_of_the_others(service, monkeypatch):
    key, is_over = service.add_tenant("downloading"), threading.Event()
    with service.client(key) as client:
        video = client.post("/v1/videos", json={"prompt": "x"}).json()["id"]
        while service.hand().make().id != video:
            pass
    store = type(service.services.store)

    def read_slowly(_store, _name, *_range):
        is_over.wait()
        yield CLIP

    def download(_number):
        with service.client(key) as client:
            return client.get(f"/v1/videos/{video}/content").content

    monkeypatch.setattr(store, "read", read_slowly)
    with ThreadPoolExecutor(THREADS + 4) as pool:
        downloads = [pool.submit(download, number) for number in range(THREADS + 4)]
        try:
            wait_until(lambda: len(service.services.store_calls._waiting.get("downloading", ())) == THREADS)
            with service.client() as client:
                assert client.get("/v1/videos").status_code == 200
        finally:
            is_over.set()
        assert {each.result() for each in downloads} == {CLIP}


def test_remixes_that_copy_an_image_do_not_take_the_writes_of_others(service, monkeypatch):
    key, is_over = service.add_tenant("remixing"), threading.Event()
    with service.client(key) as client:
        files = {"input_reference": ("a.png", png(), "image/png")}
        video = client.post("/v1/videos", data={"prompt": "x"}, files=files).json()["id"]
    while service.hand().make().id != video:
        pass

    def read_slowly(_store, _name, *_range):
        is_over.wait()
        yield b"image"

    def remix(number):
        with service.client(key) as client:
            return client.post(f"/v1/videos/{video}/remix", json={"prompt": f"x {number}"}).status_code

    monkeypatch.setattr(type(service.services.store), "read", read_slowly)
    with ThreadPoolExecutor(SLOW_THREADS) as pool:
        remixes = [pool.submit(remix, number) for number in range(SLOW_THREADS)]
        try:
            wait_until(lambda: len(service.services.slow._waiting.get("remixing", ())) == SLOW_THREADS - 2)
            assert service.services.writes._held["remixing"] == 0
        finally:
            is_over.set()
        assert {each.result() for each in remixes} == {200}


def test_plans_of_one_tenant_leave_threads_for_the_uploads_of_others(service, monkeypatch):
    planning, is_over, running_plans = service.add_tenant("planning"), threading.Event(), []

    def plan(question):
        running_plans.append(question)
        is_over.wait()
        return {}

    def ask_for_plan(_number):
        with service.client(planning) as client:
            return client.post("/v1/plan", json={"model": "wan2.1-t2v-14b"}).status_code

    monkeypatch.setattr("filmgate.api.plan._plan", plan)
    with ThreadPoolExecutor(SLOW_THREADS) as pool:
        asked = [pool.submit(ask_for_plan, number) for number in range(SLOW_THREADS)]
        try:
            waiting = lambda: len(service.services.slow._waiting.get("planning", ()))  # noqa: E731
            wait_until(lambda: len(running_plans) + waiting() == SLOW_THREADS)
            assert len(running_plans) == 2
        finally:
            is_over.set()
        assert {each.result() for each in asked} == {200}


def test_event_streams_are_counted_per_tenant_until_they_end(limited):
    with limited.client(limited.add_tenant("watching")) as client:
        video = client.post("/v1/videos", json={"prompt": "x"}).json()["id"]
        path = f"/v1/videos/{video}/events"
        with client.stream("GET", path) as one, client.stream("GET", path) as two:
            assert (one.status_code, two.status_code) == (200, 200)
            assert error_of(client.get(path)) == (429, "rate_limit_exceeded")
        wait_until(lambda: limited.edge.watchers.total == 0)
        client.post(f"/v1/videos/{video}/cancel")


def test_a_live_stream_ends_when_its_viewer_leaves(limited):
    with limited.client(limited.add_tenant("viewing")) as client:
        video = client.post("/v1/videos", json={"prompt": "x"}).json()["id"]
        request = f"GET /v1/videos/{video}/stream HTTP/1.1\r\nHost: x\r\n{_key(client)}\r\n".encode()
        address = limited.url.removeprefix("http://").split(":")
        viewers = [socket.create_connection((address[0], int(address[1]))) for _ in range(2)]
        for viewer in viewers:
            viewer.sendall(request)
        wait_until(lambda: limited.edge.streams.total == 2)
        assert error_of(client.get(f"/v1/videos/{video}/stream")) == (429, "rate_limit_exceeded")
        for viewer in viewers:
            viewer.close()
        wait_until(lambda: limited.edge.streams.total == 0)
        client.post(f"/v1/videos/{video}/cancel")


def test_viewers_of_a_queued_video_share_one_poller(service, client, monkeypatch):
    video = client.post("/v1/videos", json={"prompt": "x"}).json()["id"]
    calls, real = [], service.services.reader.find
    monkeypatch.setattr(
        type(service.services.reader),
        "find",
        lambda _self, *args, **options: calls.append(args) or real(*args, **options),
    )
    threads = [threading.Thread(target=client.get, args=(f"/v1/videos/{video}/stream",)) for _ in range(10)]
    for thread in threads:
        thread.start()
    wait_until(lambda: service.edge.streams.total == 10)
    polls, changes = [], service.services.reader.changes
    monkeypatch.setattr(
        type(service.services.reader), "changes", lambda _self, seen: polls.append(seen) or changes(seen)
    )
    calls.clear()
    wait_until(lambda: len(polls) >= 20)
    # Ten viewers that poll on their own, every 50 ms, would have read the job a hundred times.
    assert len(calls) < 50
    client.post(f"/v1/videos/{video}/cancel")
    for thread in threads:
        thread.join(60)
    assert service.edge.streams.total == 0


def ask(service, request):
    """The first bytes of the response to raw bytes."""
    host, port = service.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(request)
        return connection.recv(65536)


def _from(address, service, key):
    """A client with another loopback address."""
    return service.client(key, transport=httpx.HTTPTransport(local_address=address))


def _key(client):
    return f"Authorization: {client.headers['authorization']}\r\n"


def _metrics(service):
    with service.client() as client:
        return client.get("/metrics").text
