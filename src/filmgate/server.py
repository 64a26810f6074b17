"""Builds the server process: the HTTP edge over the embedded or the shared parts, and a worker child."""

import ctypes
import os
import shlex
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType

import uvicorn
from prometheus_client import CollectorRegistry

from filmgate.admission.accept import Neighbours, open_gate
from filmgate.api.app import build_app
from filmgate.api.auth import is_loopback
from filmgate.api.certificates import CertificateProtocol
from filmgate.api.services import Stations
from filmgate.api.stream_links import PassOffice
from filmgate.database import Database, open_database
from filmgate.errors import FilmgateError, SettingsError
from filmgate.providers import open_provider
from filmgate.providers.base import Provider
from filmgate.providers.breaker import Breaker
from filmgate.scheduling import open_book, open_queue
from filmgate.scheduling.base import JobQueue, Sweepable
from filmgate.scheduling.metrics import QueueCollector
from filmgate.scheduling.router import Router
from filmgate.scheduling.spill import Spiller, spilling
from filmgate.scheduling.workers import Roster
from filmgate.settings import ApiSettings, FallbackSettings, Settings
from filmgate.store import open_store
from filmgate.store.keys import open_keys
from filmgate.telemetry.logs import Log, configure_logs
from filmgate.tenants import open_tenants
from filmgate.tenants.local import KEY_FILE, ensure_local_tenant
from filmgate.worker.retention import Retention

log = Log("serve")

_RESTART_SECONDS = (0.5, 30.0)
_STEADY_SECONDS = 60.0
_STOP_SECONDS = 40.0
_PENDING_CONNECTIONS = 1024
SWEEP_SECONDS = 60.0
_ORPHANS_SECONDS = 3600.0
_SHORTEST_SWEEP_SECONDS = 0.2


def open_stations(settings: Settings, provider: Provider | None = None) -> Stations:
    """Every part of the server, opened once; with a provider, jobs may leave for it."""
    check_exposure(settings.api)
    database = open_database(settings.queue, settings.data)
    keys = open_keys(settings.store, settings.data)
    tenants = open_tenants(database)
    ensure_local_tenant(tenants, settings.data)
    store = open_store(settings.store, settings.data, keys)
    queue, book = open_queue(database, keys, settings.queue), open_book(database, keys)
    router = open_router(database, provider, settings) if provider is not None else None
    neighbours = Neighbours(queue, book, store, tenants, router)
    gate = open_gate(neighbours, Roster(database), settings.admission)
    link_seconds = settings.store.link_seconds
    passes = PassOffice(keys, link_seconds)
    return Stations(gate, queue, book, store, tenants, settings.api, link_seconds, passes)


def open_configured(fallback: FallbackSettings) -> Provider | None:
    """The provider of the settings, if they name one: without it no job is ever routed."""
    return None if fallback.provider == "disabled" else open_provider(fallback)


def open_router(database: Database, provider: Provider, settings: Settings) -> Router:
    """The choice between our GPUs and this provider."""
    breaker = Breaker(database, provider.name, settings.routing)
    return Router(provider, breaker, settings.routing, settings.admission.gpus)


def open_spill(stations: Stations) -> AbstractContextManager[None]:
    """A look at what waits every few seconds, where there is a provider to spill to."""
    if (router := stations.gate.router) is None:
        return nullcontext()
    spiller = Spiller(router, stations.queue, stations.book, stations.tenants)
    return spilling(spiller, router.settings.spill_seconds)


def check_exposure(api: ApiSettings) -> None:
    """Without a key only on loopback, and a client authority only with a certificate of our own."""
    if api.open and not is_loopback(api.host):
        raise SettingsError(f"only allowed on loopback, not on {api.host}", option="--open")
    if bool(api.tls_certificate) != bool(api.tls_key):
        raise SettingsError("needs both a certificate and its key", option="--tls-certificate, --tls-key")
    if api.tls_client_ca and not api.tls_certificate:
        raise SettingsError("needs --tls-certificate and --tls-key too", option="--tls-client-ca")
    for name in (api.tls_certificate, api.tls_key, api.tls_client_ca):
        if name and not Path(name).is_file():
            raise SettingsError(f"{name} does not exist", option="--tls-*")


def serve(settings: Settings, *, has_worker: bool = True) -> None:
    """Run until SIGTERM or SIGINT: stop accepting, finish what is being answered, stop the worker."""
    configure_logs()
    stations = open_stations(settings, open_configured(settings.fallback))
    registry = CollectorRegistry()
    registry.register(QueueCollector(stations.queue, stations.book, time.time))
    app = build_app(stations, registry)
    listener = listen(settings.api)
    # uvicorn raises the signal that stopped it once more when it is done: it must end us through `finally`.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)
    try:
        print_welcome(settings, listener.getsockname()[1])
        retention = Retention(stations.queue, stations.book, stations.store, stations.tenants)
        with (
            sweeping(retention),
            redelivering(stations.queue, settings.queue.sweep_seconds),
            open_spill(stations),
            embedded_workers(settings) if has_worker else nullcontext(),
        ):
            uvicorn.Server(uvicorn_config(app, settings.api)).run(sockets=[listener])
    finally:
        listener.close()


def _leave(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(0)


def uvicorn_config(app: object, api: ApiSettings) -> uvicorn.Config:
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        http=CertificateProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        # Event streams and live clips never end by themselves; clients reconnect to the next process.
        timeout_graceful_shutdown=5,
        timeout_keep_alive=75,
        ssl_certfile=api.tls_certificate or None,
        ssl_keyfile=api.tls_key or None,
        ssl_ca_certs=api.tls_client_ca or None,
        ssl_cert_reqs=ssl.CERT_REQUIRED if api.tls_client_ca else ssl.CERT_NONE,
    )


def listen(api: ApiSettings) -> socket.socket:
    """A listening socket, bound before anything else is started. Raises SettingsError."""
    family = socket.AF_INET6 if ":" in api.host else socket.AF_INET
    # The protocol is spelled out: asyncio turns Nagle's algorithm off only for sockets that say they are TCP,
    # and with it on every small answer waits 40 ms for the client's delayed acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((api.host, api.port))
        listener.listen(_PENDING_CONNECTIONS)
    except OSError as exc:
        listener.close()
        raise SettingsError(
            f"cannot listen on {api.host}:{api.port}: {exc.strerror}; choose another", option="--port"
        ) from exc
    return listener


@dataclass(frozen=True, slots=True)
class Welcome:
    """What a first visitor needs: where it is, where the key is, two snippets that work when pasted."""

    address: str
    key_file: Path
    is_open: bool

    @property
    def curl(self) -> str:
        key = "" if self.is_open else f' -H "Authorization: Bearer $(cat {shlex.quote(str(self.key_file))})"'
        return f'curl {self.address}/v1/videos{key} -F prompt="a red ball bounces on the grass"'

    @property
    def python(self) -> str:
        key = '"open"' if self.is_open else f"open({str(self.key_file)!r}).read().strip()"
        return (
            "import openai\n"
            f"client = openai.OpenAI(base_url={self.address + '/v1'!r}, api_key={key})\n"
            'video = client.videos.create_and_poll(prompt="a red ball bounces on the grass")\n'
            'client.videos.download_content(video.id).write_to_file("clip.mp4")\n'
        )


def print_welcome(settings: Settings, port: int) -> None:
    """The first lines of `filmgate serve`, on stderr."""
    scheme = "https" if settings.api.tls_certificate else "http"
    host = "127.0.0.1" if settings.api.host in ("0.0.0.0", "::") else settings.api.host  # noqa: S104
    key_file = (settings.data / KEY_FILE).resolve()
    host = f"[{host}]" if ":" in host else host
    welcome = Welcome(f"{scheme}://{host}:{port}", key_file, settings.api.open)
    lines = [f"filmgate serves {welcome.address} (docs: {welcome.address}/docs)"]
    if settings.api.open:
        lines.append("open: callers on this machine need no key")
    if key_file.exists():
        lines.append(f"the key of the tenant `local` is in {key_file}")
        lines += [
            "",
            "try it:",
            "",
            welcome.curl,
            "",
            "or in Python (pip install openai):",
            "",
            welcome.python,
        ]
    sys.stderr.write("\n".join(lines) + "\n")
    sys.stderr.flush()


@contextmanager
def sweeping(retention: Retention, seconds: float = SWEEP_SECONDS) -> Iterator[None]:
    """Remove what has expired, for as long as the server runs. Every replica may: each step is idempotent."""
    orphans_at = 0.0

    def sweep() -> None:
        nonlocal orphans_at
        retention.sweep()
        if time.monotonic() >= orphans_at:
            orphans_at = time.monotonic() + _ORPHANS_SECONDS
            retention.sweep_orphans()

    with repeating(sweep, seconds, "retention"):
        yield


@contextmanager
def redelivering(queue: JobQueue, seconds: float) -> Iterator[None]:
    """Send lost wake-ups again, for as long as the server runs: with no worker left nobody else would.

    A queue whose workers ask the database has none to lose.
    """
    if not isinstance(queue, Sweepable):
        yield
        return
    with repeating(queue.sweep, max(seconds, _SHORTEST_SWEEP_SECONDS), "redelivery"):
        yield


@contextmanager
def repeating(work: Callable[[], None], seconds: float, name: str) -> Iterator[None]:
    """Do the work again and again on a thread of that name; what fails is tried again next time."""
    is_over = threading.Event()

    def repeat() -> None:
        while not is_over.wait(seconds):
            try:
                work()
            except FilmgateError as exc:
                log.warning("a sweep failed; it is tried again", action=name, code=exc.code, seconds=seconds)

    thread = threading.Thread(target=repeat, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(_STOP_SECONDS)


@contextmanager
def embedded_workers(settings: Settings) -> Iterator[list["WorkerChild"]]:
    """A worker child for as long as the server runs, and one for the managed route where there is one."""
    children = [WorkerChild(settings, "--model", settings.admission.default_model)]
    if settings.fallback.provider != "disabled":
        children.append(WorkerChild(settings, "--managed"))
    for child in children:
        child.start()
    try:
        yield children
    finally:
        for child in children:
            child.drain()
        for child in children:
            child.stop()


_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def die_with(parent: int) -> None:
    """Between fork and exec: a server that is killed outright takes its worker with it (Linux only)."""
    if sys.platform == "linux":
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # killed before we asked to hear of it: nobody will tell us now
            os._exit(1)


class WorkerChild:
    """One worker process, started again when it dies: at once at first, more slowly if it keeps dying."""

    def __init__(self, settings: Settings, *options: str) -> None:
        self._command = [sys.executable, "-m", "filmgate", "worker", *options]
        self._environ = os.environ | {"FILMGATE_DATA": str(settings.data)}
        self._is_stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._keep_alive, name="worker-child", daemon=True)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self) -> None:
        self._thread.start()

    def drain(self) -> None:
        """Tell it to end, and start no other."""
        self._is_stopping.set()
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        """Make sure that it is gone; it has had its signal."""
        process = self._process
        if process is not None and process.poll() is None:
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
        self._thread.join(_STOP_SECONDS)

    def _keep_alive(self) -> None:
        delay, longest = _RESTART_SECONDS
        while not self._is_stopping.is_set():
            started = time.monotonic()
            # Its own session: Ctrl-C reaches the server alone, which then stops its worker in order.
            self._process = subprocess.Popen(
                self._command,
                start_new_session=True,
                env=self._environ,
                preexec_fn=partial(die_with, os.getpid()),  # noqa: PLW1509 - two system calls, no lock
            )
            code = self._process.wait()
            if self._is_stopping.is_set():
                return
            is_steady = time.monotonic() - started > _STEADY_SECONDS
            delay = _RESTART_SECONDS[0] if is_steady else min(delay * 2, longest)
            log.warning("the worker ended; it is started again", status=code, seconds=delay)
            self._is_stopping.wait(delay)
