"""The HTTP server: which address and certificates it uses, and how uvicorn runs the application."""

import errno
import resource
import socket
import ssl
from functools import partial
from pathlib import Path

import uvicorn
from cryptography import x509
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from filmgate.api.auth import is_loopback
from filmgate.api.connections import Connections, EdgeProtocol, Listener
from filmgate.errors import SettingsError
from filmgate.settings import ApiSettings
from filmgate.telemetry.logs import Log
from filmgate.telemetry.metrics import CERTIFICATE_EXPIRY

log = Log("api")

_PENDING_CONNECTIONS = 1024
# Files that are not connections: the database, objects, uploads, pipes of child processes.
_OTHER_FILES = 512


def check_exposure(api: ApiSettings) -> None:
    """Raises SettingsError for an open server beyond loopback, and for incomplete TLS settings."""
    if api.open and not is_loopback(api.host):
        raise SettingsError(f"is only allowed on a loopback address, not on {api.host}", option="--open")
    if bool(api.tls_certificate) != bool(api.tls_key):
        raise SettingsError("must be set together", option="--tls-certificate, --tls-key")
    if api.tls_client_ca and not api.tls_certificate:
        raise SettingsError("needs --tls-certificate and --tls-key", option="--tls-client-ca")
    for name in (api.tls_certificate, api.tls_key, api.tls_client_ca):
        if name and not Path(name).is_file():
            raise SettingsError(f"{name} does not exist", option="--tls-*")
    if api.tls_certificate:
        _check_tls(api)


def _check_tls(api: ApiSettings) -> None:
    """Raises SettingsError. uvicorn would name no setting, and ask the terminal for the password of a key."""
    context, option = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), "--tls-certificate, --tls-key"
    try:
        context.load_cert_chain(api.tls_certificate, api.tls_key, password=lambda: "")
        option = "--tls-client-ca"
        if api.tls_client_ca:
            context.load_verify_locations(api.tls_client_ca)
    except OSError as exc:
        reason = str(exc.reason or "") if isinstance(exc, ssl.SSLError) else exc.strerror
        words = reason.replace("_", " ").lower() if reason else "not PEM, or a key with a password"
        raise SettingsError(f"cannot be used: {words}", option=option) from exc


def open_server(app: FastAPI, api: ApiSettings, listener: Listener) -> uvicorn.Server:
    """The server of this application, to be run on this listener."""
    edge = app.state.services.edge
    limits = edge.limits
    listener.is_flooding = edge.is_flooding
    connections = Connections(edge, max_connections(limits.max_connections))
    config = uvicorn.Config(
        app,
        http=partial(EdgeProtocol, connections),  # type: ignore[arg-type]
        proxy_headers=bool(limits.trusted_proxies),
        forwarded_allow_ips=limits.trusted_proxies,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        # Event streams and live clips do not end on their own; clients reconnect to the next process.
        timeout_graceful_shutdown=5,
        timeout_keep_alive=75,
        ssl_certfile=api.tls_certificate or None,
        ssl_keyfile=api.tls_key or None,
        ssl_ca_certs=api.tls_client_ca or None,
        ssl_cert_reqs=ssl.CERT_REQUIRED if api.tls_client_ca else ssl.CERT_NONE,
    )
    return uvicorn.Server(config)


def max_connections(wanted: int) -> int:
    """Raise the limit of open files for this many connections; fewer connections if that is not allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    fewer = max(soft - _OTHER_FILES, 1)
    log.warning(
        "limits.max_connections was reduced, because the open-file limit (ulimit -n) is too low",
        connections=fewer,
    )
    return fewer


def listen(api: ApiSettings) -> Listener:
    """A listening socket. Raises SettingsError when the address cannot be used."""
    family = socket.AF_INET6 if ":" in api.host else socket.AF_INET
    # IPPROTO_TCP must be explicit: asyncio disables Nagle's algorithm only then, and with it every small
    # response would wait 40 ms for a delayed acknowledgement.
    listener = Listener(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((api.host, api.port))
        listener.listen(_PENDING_CONNECTIONS)
    except OSError as exc:
        listener.close()
        is_wrong_host = isinstance(exc, socket.gaierror) or exc.errno == errno.EADDRNOTAVAIL
        option, choice = (
            ("--host", "an address of this machine") if is_wrong_host else ("--port", "another port")
        )
        message = f"cannot listen on {api.host}:{api.port}: {exc.strerror}; choose {choice}"
        raise SettingsError(message, option=option) from exc
    return listener


def export_expiry(certificate: Path, registry: CollectorRegistry) -> None:
    """Export when the server's certificate expires. A renewed file is used after the next start."""
    first, *_ = x509.load_pem_x509_certificates(certificate.read_bytes())
    CERTIFICATE_EXPIRY.live_gauge(registry).set(first.not_valid_after_utc.timestamp())
