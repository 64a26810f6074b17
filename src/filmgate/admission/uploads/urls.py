"""Fetches a URL given by a client, without giving access to the internal network.

Every redirect is resolved once, every resolved address must be public, and the connection goes to the
checked address: a DNS answer that changes in between has no effect.
"""

import http.client
import ipaddress
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urljoin, urlsplit

from filmgate.errors import AddressRefused, UploadTooLarge
from filmgate.models.requests import Upload

OPTION = "input_reference.image_url"
_REDIRECTS = (301, 302, 303, 307, 308)
_PORTS = {"http": 80, "https": 443}
_CHUNK = 64 << 10

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Resolver(Protocol):
    """Resolves a host name. Raises OSError."""

    def __call__(self, host: str, port: int) -> list[Address]: ...


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """Limits of a fetch. Empty `hosts`: any public host."""

    seconds: float
    max_bytes: int
    max_redirects: int = 3
    hosts: frozenset[str] = frozenset()


def fetch(
    url: str,
    limits: FetchLimits,
    resolve: Resolver | None = None,
    is_allowed: Callable[[Address], bool] | None = None,
) -> Upload:
    """The bytes behind a public URL. Raises AddressRefused and UploadTooLarge."""
    deadline = time.monotonic() + limits.seconds
    for _ in range(limits.max_redirects + 1):
        hop = _Hop.of(url, limits)
        address = _public_address(hop, resolve or resolve_host, is_allowed or is_public)
        answer = _get(hop, address, deadline, limits.max_bytes)
        if isinstance(answer, bytes):
            return Upload(OPTION, answer)
        url = urljoin(url, answer.location)
    raise AddressRefused(f"more than {limits.max_redirects} redirects", option=OPTION)


def is_public(address: Address) -> bool:
    """Whether an address is on the public internet. IPv4 addresses embedded in IPv6 are checked too."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1]
        if inner is not None:
            return is_public(inner)
        if address in _NAT64:
            return is_public(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        if int(address) >> 32 == 0:
            return False
    return address.is_global and not address.is_multicast and not address.is_reserved


_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def resolve_host(host: str, port: int) -> list[Address]:
    """All addresses of the host, in the resolver's order."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]


@dataclass(frozen=True, slots=True)
class _Hop:
    scheme: str
    host: str
    port: int
    target: str

    @classmethod
    def of(cls, url: str, limits: FetchLimits) -> "_Hop":
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as exc:
            raise AddressRefused("the URL is malformed", option=OPTION) from exc
        if parts.scheme not in _PORTS or not parts.hostname:
            raise AddressRefused("the URL must be http or https", option=OPTION)
        if parts.username is not None or parts.password is not None:
            raise AddressRefused("the URL must not contain a user name", option=OPTION)
        if port not in (None, 80, 443):
            raise AddressRefused("the port of the URL must be 80 or 443", option=OPTION)
        if limits.hosts and parts.hostname not in limits.hosts:
            raise AddressRefused("the host is not allowed by admission.fetch_hosts", option=OPTION)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        if not (target.isascii() and target.isprintable() and " " not in target):
            raise AddressRefused("the URL contains characters that must be escaped", option=OPTION)
        return cls(parts.scheme, parts.hostname, port or _PORTS[parts.scheme], target)


@dataclass(frozen=True, slots=True)
class _Redirect:
    location: str


def _public_address(hop: _Hop, resolve: Resolver, is_allowed: Callable[[Address], bool]) -> Address:
    try:
        addresses = resolve(hop.host, hop.port)
    except (OSError, UnicodeError, ValueError) as exc:
        raise AddressRefused("the host cannot be resolved", option=OPTION) from exc
    # All addresses must be public: one private address among public ones indicates DNS rebinding.
    if not addresses or not all(is_allowed(address) for address in addresses):
        raise AddressRefused("the host is not on the public internet", option=OPTION)
    return addresses[0]


def _get(hop: _Hop, address: Address, deadline: float, max_bytes: int) -> bytes | _Redirect:
    connection = _pinned(hop, address, _left(deadline))
    try:
        headers = {"User-Agent": "filmgate", "Accept": "image/*", "Accept-Encoding": "identity"}
        connection.request("GET", hop.target, headers=headers)
        response = connection.getresponse()
        location = response.getheader("Location")
        if response.status in _REDIRECTS and location:
            return _Redirect(location)
        if response.status != 200:
            raise AddressRefused(f"the host returned HTTP {response.status}", option=OPTION)
        return _body(connection, response, deadline, max_bytes)
    except (OSError, http.client.HTTPException, ssl.SSLError) as exc:
        raise AddressRefused("the URL could not be fetched", option=OPTION) from exc
    finally:
        connection.close()


def _body(
    connection: http.client.HTTPConnection,
    response: http.client.HTTPResponse,
    deadline: float,
    max_bytes: int,
) -> bytes:
    data = bytearray()
    # read1 returns what has arrived: the deadline also holds against a very slow server.
    while True:
        if connection.sock is not None:
            connection.sock.settimeout(_left(deadline))
        chunk = response.read1(_CHUNK)
        if not chunk:
            return bytes(data)
        data += chunk
        if len(data) > max_bytes:
            raise UploadTooLarge(f"the file at the URL is larger than {max_bytes} bytes", option=OPTION)
        _left(deadline)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise AddressRefused("fetching the URL timed out", option=OPTION)
    return left


def _pinned(hop: _Hop, address: Address, seconds: float) -> http.client.HTTPConnection:
    """A connection to the checked address, with the host name in TLS and in the Host header."""
    connection = http.client.HTTPConnection(hop.host, hop.port, timeout=seconds)
    try:
        sock = socket.create_connection((str(address), hop.port), timeout=seconds)
        if hop.scheme == "https":
            sock = ssl.create_default_context().wrap_socket(sock, server_hostname=hop.host)
    except OSError as exc:
        raise AddressRefused("the host cannot be reached", option=OPTION) from exc
    connection.sock = sock
    return connection
