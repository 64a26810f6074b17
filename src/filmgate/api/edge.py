"""The limits of one server process, and what they refused: requests and logins per second (token buckets),
open streams and uploads (counts).
"""

import asyncio
import hashlib
import ipaddress
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp, Receive, Scope, Send

from filmgate.api.problems import to_response
from filmgate.errors import InvalidKey, RateLimited, SettingsError
from filmgate.jobs import TenantId
from filmgate.settings import LimitSettings
from filmgate.telemetry import metrics
from filmgate.telemetry.logs import Log
from filmgate.tenants.base import Tenant

log = Log("api")

# An address floods the server if it continues after this many refusals.
_MAX_REFUSALS = 50
_REFUSALS_PER_SECOND = 1.0
# A refusal is delayed, so that a client that does not wait cannot repeat it at full speed.
_MAX_DELAY_SECONDS = 0.5
# The wait after a refused stream or upload.
_RETRY_SECONDS = 5.0
# Buckets beyond this number are forgotten, the oldest first, so that memory does not grow with addresses.
MAX_BUCKETS = 10_000
_MAX_KNOWN_CREDENTIALS = 1000
_UNKNOWN = "unknown"

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class OpenCount:
    """Limits how many things of one kind are open, per tenant and in all; 0 means no limit."""

    def __init__(self, kind: str, per_tenant: int, total: int, on_refused: Callable[[str], None]) -> None:
        self._kind = kind
        self._per_tenant = per_tenant
        self._total = total
        self._on_refused = on_refused
        self._open: Counter[TenantId] = Counter()

    def has_room(self, tenant_id: TenantId) -> bool:
        """Whether the tenant may open one more."""
        return self._limit_reached(tenant_id) is None

    @contextmanager
    def holding(self, tenant_id: TenantId) -> Iterator[None]:
        """Count one more while the block runs. Raises RateLimited."""
        if (limit := self._limit_reached(tenant_id)) is not None:
            self._on_refused(self._kind)
            raise RateLimited(
                f"too many {self._kind}: {limit} open, which is the limit; close one or try again later",
                retry_after_seconds=_RETRY_SECONDS,
            )
        self._open[tenant_id] += 1
        try:
            yield
        finally:
            self._open[tenant_id] -= 1
            if not self._open[tenant_id]:
                del self._open[tenant_id]

    def _limit_reached(self, tenant_id: TenantId) -> str | None:
        if self._per_tenant and self._open[tenant_id] >= self._per_tenant:
            return f"this tenant has {self._per_tenant}"
        if self._total and self._open.total() >= self._total:
            return f"the service has {self._total}"
        return None

    @property
    def total(self) -> int:
        return self._open.total()


class TokenBuckets:
    """One bucket per key. A bucket holds `burst` tokens and regains `per_second`; 0 means no limit."""

    def __init__(self, per_second: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str) -> float:
        """Take a token. Returns 0.0, or the seconds until there is one."""
        wait = self.wait_seconds(key)
        if self._per_second and not wait:
            self._buckets[key] = (self._level(key) - 1.0, self._clock())
            self._buckets.move_to_end(key)
            if len(self._buckets) > MAX_BUCKETS:
                self._buckets.popitem(last=False)
        return wait

    def wait_seconds(self, key: str) -> float:
        """The seconds until the bucket has a token; 0.0 if it has one."""
        if not self._per_second:
            return 0.0
        return max(0.0, (1.0 - self._level(key)) / self._per_second)

    def __len__(self) -> int:
        return len(self._buckets)

    def _level(self, key: str) -> float:
        level, at = self._buckets.get(key, (self._burst, 0.0))
        return min(self._burst, level + (self._clock() - at) * self._per_second)


class Logins:
    """Limits attempts with invalid keys per address, and remembers the tenants of valid credentials.

    Credentials that were valid a moment ago are still accepted from a limited address, which tenants may
    share. Only their digests are kept.
    """

    def __init__(self, failures_per_minute: float, clock: Callable[[], float] = time.monotonic) -> None:
        per_minute = failures_per_minute
        self._failures = TokenBuckets(per_minute / 60, max(per_minute, 1.0), clock)
        self._tenants: OrderedDict[bytes, TenantId] = OrderedDict()

    def wait_seconds(self, address: str, credential: str | None) -> float:
        """How long this address must wait before this credential is looked up."""
        wait = self._failures.wait_seconds(address)
        return 0.0 if wait and self.tenant_of(credential) is not None else wait

    def tenant_of(self, credential: str | None) -> TenantId | None:
        """The tenant of a credential that was valid a moment ago."""
        return self._tenants.get(_digest(credential)) if credential is not None else None

    def fail(self, address: str, credential: str | None) -> None:
        self._failures.take(address)
        if credential is not None:
            self._tenants.pop(_digest(credential), None)

    def succeed(self, credential: str, tenant_id: TenantId) -> None:
        digest = _digest(credential)
        self._tenants[digest] = tenant_id
        self._tenants.move_to_end(digest)
        if len(self._tenants) > _MAX_KNOWN_CREDENTIALS:
            self._tenants.popitem(last=False)


def to_address_key(host: str) -> str:
    """The network that one client controls: an IPv4 address, or the /64 of an IPv6 address."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return _UNKNOWN
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.IPv6Address(int(address) >> 64 << 64))
    return str(address)


def parse_proxies(text: str) -> tuple[Network, ...]:
    """The networks in `limits.trusted_proxies`. Raises SettingsError for what uvicorn would ignore."""
    networks: list[Network] = []
    for name in filter(None, map(str.strip, text.split(","))):
        try:
            network = ipaddress.ip_network(name)
        except ValueError as exc:
            raise SettingsError(
                f"{name!r} is not an address or a network such as 10.0.0.0/8",
                option="limits.trusted_proxies",
            ) from exc
        # A client of IPv6 is its /64: see `to_address_key`.
        is_part = network.version == 6 and network.prefixlen > 64
        networks.append(network.supernet(new_prefix=64) if is_part else network)
    return tuple(networks)


def _digest(credential: str) -> bytes:
    return hashlib.sha256(credential.encode("utf-8", "surrogatepass")).digest()


class Edge:
    """Counts and limits requests, connections, logins, streams and uploads. Used on the event loop."""

    def __init__(self, limits: LimitSettings) -> None:
        self.limits = limits
        self._refused = metrics.HTTP_REFUSED.live_counter(None)
        self._failed_logins = metrics.FAILED_LOGINS.live_counter(None)
        self.connections = metrics.HTTP_CONNECTIONS.live_gauge(None)
        self._by_address = TokenBuckets(limits.address_requests_per_second, limits.address_request_burst)
        self._refusals = TokenBuckets(_REFUSALS_PER_SECOND, _MAX_REFUSALS)
        self._proxies = parse_proxies(limits.trusted_proxies)
        self._by_tenant = TokenBuckets(limits.tenant_requests_per_second, limits.tenant_request_burst)
        self._logins = Logins(limits.failed_logins_per_minute)
        self.watchers = OpenCount("event streams", limits.max_watchers_per_tenant, 0, self.refuse)
        self.streams = OpenCount("live streams", limits.max_streams_per_tenant, 0, self.refuse)
        self.uploads = OpenCount("uploads", limits.max_uploads_per_tenant, limits.max_uploads, self.refuse)

    def export_metrics(self, registry: CollectorRegistry) -> None:
        for metric in (self._refused, self._failed_logins, self.connections):
            registry.register(metric)

    def refuse(self, reason: str) -> None:
        """Count a refusal. Reasons are a closed set."""
        self._refused.labels(reason).inc()

    def take_address(self, address: str) -> float:
        """0.0, or the seconds that this address must wait for its next request."""
        wait = self._by_address.take(address)
        if wait:
            self.refuse("address rate")
            self._refusals.take(address)
        return wait

    def is_flooding(self, address: str) -> bool:
        """Whether an address continues to send requests after many refusals. Counts one more if so."""
        is_flooding = self._refusals.wait_seconds(address) > 0 and not self.is_proxy(address)
        if is_flooding:
            self.refuse("flood")
        return is_flooding

    def is_proxy(self, address: str) -> bool:
        """Whether an address, as `to_address_key` returns it, is a trusted proxy."""
        if not self._proxies or address == _UNKNOWN:
            return False
        return any(ipaddress.ip_address(address) in network for network in self._proxies)

    async def login(
        self, scope: Scope, credential: str | None, look_up: Callable[[], Awaitable[Tenant]]
    ) -> Tenant:
        """The tenant that `look_up` finds, within the limits of its address and of the tenant.

        `credential` is what `look_up` verifies; None if the request has nothing that can be valid.
        Raises RateLimited, and what `look_up` raises; refusals are delayed.
        """
        address = _address_of(scope)
        try:
            self._check_login(address, credential)
            tenant = await look_up()
            if credential is not None:
                self._logins.succeed(credential, tenant.id)
            if wait := self._by_tenant.take(tenant.id):
                raise self._refuse_tenant(wait)
        except InvalidKey:
            self._failed_logins.inc()
            self._logins.fail(address, credential)
            log.warning("login failed", client_address=address)
            raise
        except RateLimited as refusal:
            await _delay_refusal(refusal.retry_after_seconds)
            raise
        return tenant

    def _check_login(self, address: str, credential: str | None) -> None:
        """Raises RateLimited if the address has sent too many invalid keys, or this tenant too many requests.

        The credential need not be looked up then.
        """
        if wait := self._logins.wait_seconds(address, credential):
            self.refuse("login rate")
            raise RateLimited(
                "too many requests with an invalid API key from this address; try again later",
                retry_after_seconds=wait,
            )
        tenant_id = self._logins.tenant_of(credential)
        if tenant_id is not None and (wait := self._by_tenant.wait_seconds(tenant_id)):
            raise self._refuse_tenant(wait)

    def _refuse_tenant(self, wait: float) -> RateLimited:
        self.refuse("tenant rate")
        return RateLimited("this tenant sends too many requests; slow down", retry_after_seconds=wait)


class AddressLimit:
    """Refuses requests of an address that sends too many, before anything else is done for them.

    Refusals are delayed. Liveness is not limited, unless the address floods the server: then its connections
    are closed.
    """

    def __init__(self, app: ASGIApp, edge: Edge) -> None:
        self._app = app
        self._edge = edge

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_limited = scope["type"] == "http" and scope["path"] != "/healthz"
        address = _address_of(scope)
        wait = self._edge.take_address(address) if is_limited else 0.0
        if not wait:
            await self._app(scope, receive, send)
            return
        await _delay_refusal(wait)
        refusal = RateLimited("this address sends too many requests; slow down", retry_after_seconds=wait)
        response = to_response(refusal)
        if self._edge.is_flooding(address):
            response.headers["connection"] = "close"
        await response(scope, receive, send)


async def _delay_refusal(wait_seconds: float) -> None:
    await asyncio.sleep(min(wait_seconds, _MAX_DELAY_SECONDS))


def _address_of(scope: Scope) -> str:
    """The client's address as a key for limits."""
    client = scope.get("client")
    return to_address_key(client[0]) if client else _UNKNOWN
