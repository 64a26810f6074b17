"""Mutual TLS: passes the RFC 4514 subject of the verified client certificate to the request."""

import asyncio
import ssl
from pathlib import Path

from cryptography import x509
from prometheus_client import CollectorRegistry
from starlette.types import Receive, Scope, Send

from filmgate.api.auth import CERTIFICATE_EXTENSION
from filmgate.api.connections import EdgeProtocol
from filmgate.telemetry.metrics import CERTIFICATE_EXPIRY


class CertificateProtocol(EdgeProtocol):
    """HTTP/1.1 that adds the client certificate's subject to the request scope."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        channel = transport.get_extra_info("ssl_object")
        subject = subject_of(channel) if isinstance(channel, ssl.SSLObject) else None
        app = self.app

        async def with_subject(scope: Scope, receive: Receive, send: Send) -> None:
            scope.setdefault("extensions", {})[CERTIFICATE_EXTENSION] = subject
            await app(scope, receive, send)

        self.app = with_subject


def export_expiry(certificate: Path, registry: CollectorRegistry) -> None:
    """Export when the server's certificate expires. The file is read at each scrape: it may be renewed."""

    def read_expiry() -> float:
        first, *_ = x509.load_pem_x509_certificates(certificate.read_bytes())
        return first.not_valid_after_utc.timestamp()

    CERTIFICATE_EXPIRY.live_gauge(registry).set_function(read_expiry)


def subject_of(channel: ssl.SSLObject) -> str | None:
    """The subject of the verified client certificate."""
    encoded = channel.getpeercert(binary_form=True)
    return x509.load_der_x509_certificate(encoded).subject.rfc4514_string() if encoded else None
