"""The management port: liveness, readiness and metrics without a key, beside the work of the process."""

import json
import select
import socket

import httpx
import pytest
from prometheus_client import CollectorRegistry, Counter

from filmgate.errors import QueueUnavailable, SettingsError
from filmgate.settings import ManagementSettings
from filmgate.telemetry.management import PORTS_TO_TRY, new_registry, running_management
from filmgate.telemetry.readiness import OK, Readiness
from tests.waiting import wait_until

ANY_PORT = ManagementSettings(port=0)


@pytest.fixture
def parts():
    return {"queue": OK, "store": OK}


@pytest.fixture
def management(parts):
    registry = CollectorRegistry()
    Counter("filmgate_test", "A counter.", registry=registry).inc()
    checks = Readiness({name: lambda name=name: parts[name] for name in parts})
    with running_management(ANY_PORT, registry, checks) as port:
        yield httpx.Client(base_url=f"http://127.0.0.1:{port}")


def test_liveness_and_metrics_need_no_key(management):
    assert management.get("/healthz").json() == {"status": "ok"}
    metrics = management.get("/metrics")
    assert "filmgate_test_total 1.0" in metrics.text
    assert metrics.headers["content-type"].startswith("text/plain; version=")


def test_metrics_are_in_the_openmetrics_format_for_who_asks(management):
    """Only this format carries exemplars."""
    answer = management.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")


def test_readiness_names_the_part_that_is_not_well(management, parts):
    assert management.get("/readyz").json() == {"is_ready": True, "parts": {"queue": "ok", "store": "ok"}}
    parts["store"] = "storage_full"
    answer = management.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["parts"]["store"] == "storage_full"


def test_a_check_that_fails_answers_with_its_code():
    def fail():
        raise QueueUnavailable("the database is down")

    assert Readiness({"queue": fail}).read() == {"queue": QueueUnavailable.code}


@pytest.mark.parametrize(
    "request_line",
    [b'G"T / HTTP/1.1', b'GET / "x" y', b"GET / HTTP/9", b"GET /" + b"a" * 70_000],
    ids=["method", "words", "version", "length"],
)
def test_a_malformed_request_gets_an_error_in_json(management, request_line):
    with socket.create_connection((management.base_url.host, management.base_url.port), 10) as connection:
        connection.sendall(request_line + b"\r\n\r\n")
        answer = connection.makefile("rb").read()
    assert json.loads(answer.rpartition(b"\r\n")[2])["error"]["code"] >= 400


def test_a_request_that_fails_is_logged_with_its_error(caplog):
    def fail():
        raise ZeroDivisionError

    with (
        running_management(ANY_PORT, CollectorRegistry(), Readiness({"queue": fail})) as port,
        pytest.raises(httpx.RemoteProtocolError),
    ):
        httpx.get(f"http://127.0.0.1:{port}/readyz")
    [record] = [record for record in caplog.records if record.levelname == "WARNING"]
    assert isinstance(record.cause, ZeroDivisionError)


def test_head_has_no_body_and_other_paths_are_unknown(management):
    assert management.head("/healthz").content == b""
    assert management.get("/v1/videos").status_code == 404
    assert management.post("/metrics").status_code == 501


def test_processes_with_the_same_setting_take_the_next_free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        first = taken.getsockname()[1]
        settings = ManagementSettings(port=first)
        with running_management(settings, CollectorRegistry(), Readiness({})) as port:
            assert first < port < first + PORTS_TO_TRY


def test_an_address_that_cannot_be_used_names_the_setting():
    settings = ManagementSettings(host="192.0.2.1")
    with (
        pytest.raises(SettingsError, match="cannot listen on 192.0.2.1") as caught,
        running_management(settings, CollectorRegistry(), Readiness({})),
    ):
        pass
    assert caught.value.option == "management.host"


def test_no_port_when_it_is_turned_off():
    with running_management(ManagementSettings(enabled=False), CollectorRegistry(), Readiness({})) as port:
        assert port is None


def test_idle_connections_are_limited_and_the_port_recovers(management):
    address = (management.base_url.host, management.base_url.port)
    held = [socket.create_connection(address) for _ in range(40)]
    # A connection that the server has closed is readable.
    wait_until(lambda: len(select.select(held, [], [], 0)[0]) == 24)
    for connection in held:
        connection.close()
    assert wait_until(lambda: _is_alive(management))


def _is_alive(management):
    try:
        return management.get("/healthz").status_code == 200
    except httpx.TransportError:
        return False


def test_every_process_reports_its_own_memory():
    assert new_registry().get_sample_value("process_resident_memory_bytes") > 0


def test_the_port_recovers_when_threads_could_not_be_started(management, monkeypatch):
    def fail(_thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as limited:
        limited.setattr("socketserver.threading.Thread.start", fail)
        for _ in range(20):  # more than the connections that may be open
            with pytest.raises(httpx.TransportError):
                management.get("/healthz")
    assert management.get("/healthz").json() == {"status": "ok"}
