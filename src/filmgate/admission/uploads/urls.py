"""Fetches a URL given by a client, without giving access to the internal network.

Every redirect is resolved once, every resolved address must be public, and the connection goes to the
checked address: a DNS answer that changes in between has no effect.
"""

import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from urllib.parse import urljoin, urlsplit

from filmgate.errors import UploadTooLarge, UrlNotAllowed
from filmgate.models.requests import Upload

OPTION = "input_reference.image_url"
_REDIRECTS = (301, 302, 303, 307, 308)
_PORTS = {"http": 80, "https": 443}
_CHUNK = 64 << 10

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolver = Callable[[str, int], list[Address]]  # of a host and a port; raises OSError


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
    """The bytes behind a public URL. Raises UrlNotAllowed and UploadTooLarge."""
    deadline = time.monotonic() + limits.seconds
    for _ in range(limits.max_redirects + 1):
        hop = _Hop.of(url, limits)
        address = _public_address(hop, resolve or resolve_host, is_allowed or is_public, deadline)
        answer = _get(hop, address, deadline, limits.max_bytes)
        if isinstance(answer, bytes):
            return Upload(OPTION, answer)
        url = _join(url, answer)
    raise _not_fetched(f"the URL has more than {limits.max_redirects} redirects")


def _join(url: str, location: str) -> str:
    try:
        return urljoin(url, location)
    except ValueError as exc:
        raise _malformed() from exc


def is_public(address: Address) -> bool:
    """Whether an address is on the public internet. IPv4 addresses in IPv6 notation are checked too."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return is_public(address.ipv4_mapped)
        if address in _NAT64:
            return is_public(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        if address not in _GLOBAL_UNICAST:
            return False
    is_special = any(address in network for network in _SPECIAL if network.version == address.version)
    return address.is_global and not address.is_multicast and not address.is_reserved and not is_special


_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
# IPv6 addresses outside this network are not assigned to hosts on the internet.
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
# Entries of the IANA special-purpose registries that some Python versions count as global, and tunnels, which
# can lead to any IPv4 address.
_SPECIAL = tuple(
    ipaddress.ip_network(network)
    for network in (
        "192.0.0.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.175.48.0/24",
        "2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20",
    )
)  # fmt: skip


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
            raise _malformed() from exc
        if parts.scheme not in _PORTS or not parts.hostname:
            raise UrlNotAllowed("the URL must be http or https", option=OPTION)
        if parts.username is not None or parts.password is not None:
            raise UrlNotAllowed("the URL must not contain a user name", option=OPTION)
        if port not in (None, 80, 443):
            raise UrlNotAllowed("the port of the URL must be 80 or 443", option=OPTION)
        if limits.hosts and parts.hostname not in limits.hosts:
            raise UrlNotAllowed("the host is not allowed by admission.fetch_hosts", option=OPTION)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        if not (target.isascii() and target.isprintable() and " " not in target):
            raise UrlNotAllowed("the URL contains characters that must be escaped", option=OPTION)
        return cls(parts.scheme, parts.hostname, port or _PORTS[parts.scheme], target)


def _public_address(
    hop: _Hop, resolve: Resolver, is_allowed: Callable[[Address], bool], deadline: float
) -> Address:
    try:
        addresses = _resolve_in_time(hop, resolve, deadline)
    except (OSError, UnicodeError, ValueError) as exc:
        raise _not_fetched("the host cannot be resolved") from exc
    # All addresses must be public: one private address among public ones indicates DNS rebinding.
    if not addresses or not all(is_allowed(address) for address in addresses):
        raise _not_fetched("the host is not on the public internet")
    return addresses[0]


def _resolve_in_time(hop: _Hop, resolve: Resolver, deadline: float) -> list[Address]:
    """Resolve on another thread: the system's resolver has no timeout that a caller can set."""
    found: list[list[Address] | Exception] = []

    def work() -> None:
        try:
            found.append(resolve(hop.host, hop.port))
        except (OSError, UnicodeError, ValueError) as exc:
            found.append(exc)

    thread = threading.Thread(target=work, name="resolve", daemon=True)
    thread.start()
    thread.join(_left(deadline))
    if not found:
        raise _timed_out()
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]


@contextmanager
def _ending_at(deadline: float, sock: socket.socket) -> Iterator[threading.Event]:
    """Shuts the socket down at a deadline, whichever part of the response is being read then, and sets the
    event. Closes the socket at the end.
    """
    has_expired = threading.Event()

    def expire() -> None:
        has_expired.set()
        with suppress(OSError):  # the server has closed the connection already
            sock.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(max(0.0, deadline - time.monotonic()), expire)
    timer.daemon = True
    timer.start()
    try:
        yield has_expired
    finally:
        timer.cancel()
        timer.join()
        sock.close()


def _get(hop: _Hop, address: Address, deadline: float, max_bytes: int) -> bytes | str:
    """The body of the response, or the location of a redirect."""
    try:
        plain = socket.create_connection((str(address), hop.port), timeout=_left(deadline))
    except TimeoutError as exc:
        raise _timed_out() from exc
    except OSError as exc:
        raise _not_fetched("the host cannot be reached") from exc
    # With its own descriptor of the connection: wrapping a socket for TLS closes the plain one.
    with _ending_at(deadline, plain.dup()) as has_expired:
        try:
            answer = _request(hop, plain, max_bytes)
        except (OSError, http.client.HTTPException, ValueError) as exc:
            # The timeout of the socket ends at the deadline too, and may be first.
            if has_expired.is_set() or isinstance(exc, TimeoutError):
                raise _timed_out() from exc
            raise _not_fetched("the URL could not be fetched") from exc
    # After the deadline a cut response can look complete.
    if has_expired.is_set():
        raise _timed_out()
    return answer


def _request(hop: _Hop, plain: socket.socket, max_bytes: int) -> bytes | str:
    """One request on a connection to the checked address; TLS and the Host header have the host name."""
    connection = http.client.HTTPConnection(hop.host, hop.port)
    connection.sock = plain
    # The Host header has no default port: a signed URL is valid only for the host that it names.
    connection.default_port = _PORTS[hop.scheme]
    try:
        if hop.scheme == "https":
            connection.sock = ssl.create_default_context().wrap_socket(plain, server_hostname=hop.host)
        headers = {"User-Agent": "filmgate", "Accept": "image/*", "Accept-Encoding": "identity"}
        connection.request("GET", hop.target, headers=headers)
        response = connection.getresponse()
        location = response.getheader("Location")
        if response.status in _REDIRECTS and location:
            return location
        if response.status != 200:
            raise _not_fetched(f"the host returned HTTP {response.status}")
        return _body(response, max_bytes)
    finally:
        connection.close()


def _body(response: http.client.HTTPResponse, max_bytes: int) -> bytes:
    data = bytearray()
    while chunk := response.read1(_CHUNK):
        data += chunk
        if len(data) > max_bytes:
            raise UploadTooLarge(f"the file at the URL is larger than {max_bytes} bytes", option=OPTION)
    return bytes(data)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise _timed_out()
    return left


def _malformed() -> UrlNotAllowed:
    return UrlNotAllowed("the URL is malformed", option=OPTION)


def _timed_out() -> UrlNotAllowed:
    return _not_fetched("fetching the URL timed out")


def _not_fetched(reason: str) -> UrlNotAllowed:
    return UrlNotAllowed(f"{reason}; check the URL, or send the image itself", option=OPTION)
