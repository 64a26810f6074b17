"""The management port of a server or a worker: /healthz, /readyz and /metrics, without a key.

It runs on its own threads, so it answers while the API is busy and while a worker renders.
"""

import errno
import json
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import BoundedSemaphore, Thread
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder

from filmgate.errors import SettingsError
from filmgate.settings import ManagementSettings
from filmgate.telemetry.logs import Log
from filmgate.telemetry.metrics import TASK_FAILURE_COUNTER, THROTTLE_COUNTER
from filmgate.telemetry.readiness import OK, Readiness, is_ready

log = Log("management")

# Several processes of one machine share the setting: a server, its workers, one worker per GPU.
PORTS_TO_TRY = 16
_MAX_CONNECTIONS = 16
_SOCKET_SECONDS = 10.0
_POLL_SECONDS = 0.1
_JSON = "application/json"


def new_registry() -> CollectorRegistry:
    """A registry with the metrics that every process has: CPU, memory, throttled calls, failed tasks."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    registry.register(THROTTLE_COUNTER)
    registry.register(TASK_FAILURE_COUNTER)
    return registry


class ManagementServer(ThreadingHTTPServer):
    """One thread per connection, a bounded number of connections."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], registry: CollectorRegistry, readiness: Readiness) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.registry = registry
        self.readiness = readiness
        self._connections = BoundedSemaphore(_MAX_CONNECTIONS)
        super().__init__(address, ManagementHandler)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def process_request(self, request: object, client_address: object) -> None:
        if not self._connections.acquire(blocking=False):
            self.shutdown_request(request)  # type: ignore[arg-type]
            return
        try:
            super().process_request(request, client_address)  # type: ignore[arg-type]
        except BaseException:  # no thread could be started, which would release it
            self._connections.release()
            raise

    def process_request_thread(self, request: object, client_address: object) -> None:
        try:
            super().process_request_thread(request, client_address)  # type: ignore[arg-type]
        finally:
            self._connections.release()

    def handle_error(self, _request: object, _client_address: object) -> None:
        log.warning("a request to the management port failed", error=sys.exception())


class ManagementHandler(BaseHTTPRequestHandler):
    """Answers GET and HEAD; one request per connection."""

    server: ManagementServer
    server_version = "filmgate"
    sys_version = ""
    timeout = _SOCKET_SECONDS

    def do_GET(self) -> None:
        match urlsplit(self.path).path:
            case "/healthz":
                self._send_json(HTTPStatus.OK, {"status": OK})
            case "/readyz":
                parts = self.server.readiness.read()
                ready = is_ready(parts)
                status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
                self._send_json(status, {"is_ready": ready, "parts": parts})
            case "/metrics":
                encode, media_type = choose_encoder(self.headers.get("Accept", ""))
                self._send(HTTPStatus.OK, media_type, encode(self.server.registry))
            case _:
                self.send_error(HTTPStatus.NOT_FOUND)

    do_HEAD = do_GET

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        status = HTTPStatus(code)
        self._send_json(status, {"error": {"message": message or status.phrase, "code": code}})

    def _send_json(self, status: HTTPStatus, answer: dict[str, object]) -> None:
        self._send(status, _JSON, json.dumps(answer).encode())

    def _send(self, status: HTTPStatus, media_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", media_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        """Scrapes and probes are not logged."""


@contextmanager
def running_management(
    settings: ManagementSettings, registry: CollectorRegistry, readiness: Readiness
) -> Iterator[int | None]:
    """Answer on the management port until the block ends; yields the port, None if it is turned off.

    Raises SettingsError when the address cannot be used.
    """
    if not settings.enabled:
        yield None
        return
    server = _listen(settings, registry, readiness)
    thread = Thread(
        target=server.serve_forever, kwargs={"poll_interval": _POLL_SECONDS}, name="management", daemon=True
    )
    thread.start()
    log.info("the management port is open", port=server.port)
    try:
        yield server.port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _listen(
    settings: ManagementSettings, registry: CollectorRegistry, readiness: Readiness
) -> ManagementServer:
    """Listen on the first free port from `management.port` on."""
    host, first = settings.host, settings.port
    last = min(first + PORTS_TO_TRY - 1, 65535) if first else 0
    for port in range(first, last + 1):
        try:
            return ManagementServer((host, port), registry, readiness)
        except OSError as exc:
            if exc.errno != errno.EADDRINUSE:
                raise SettingsError(
                    f"cannot listen on {host}:{port}: {exc.strerror}", option="management.host"
                ) from exc
    raise SettingsError(
        f"the ports {first} to {last} of {host} are in use; choose another one, or 0 for any free port",
        option="management.port",
    )
