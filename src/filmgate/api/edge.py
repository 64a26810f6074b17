"""The limits of one server process, and what they refused."""

import asyncio

from fastapi import Request
from prometheus_client import CollectorRegistry
from starlette.types import Scope

from filmgate.api.rates import Logins, TokenBuckets, to_address_key
from filmgate.api.shares import FairSlots, OpenCount
from filmgate.errors import RateLimited
from filmgate.jobs import TenantId
from filmgate.settings import LimitSettings
from filmgate.telemetry import metrics
from filmgate.telemetry.logs import Log

log = Log("api")

# Fetching a URL and decoding an image take seconds: they have their own threads, shared fairly.
SLOW_THREADS = 8
_SLOW_PER_TENANT = 2
# Requests that write to the database: half of the threads, and half of those for one tenant.
_WRITES = 8
_WRITES_PER_TENANT = 4
# An address floods the server if it goes on after this many refusals.
_MAX_REFUSALS = 50
_REFUSALS_PER_SECOND = 1.0
# A refusal is delayed, so that a client that does not wait cannot repeat it at full speed.
_MAX_DELAY_SECONDS = 0.5


class Edge:
    """Counts and limits requests, connections, logins, streams and uploads. Used on the event loop."""

    def __init__(self, limits: LimitSettings, registry: CollectorRegistry) -> None:
        self.limits = limits
        self._refused = metrics.HTTP_REFUSED.live_counter(registry)
        self._failed_logins = metrics.FAILED_LOGINS.live_counter(registry)
        self.connections = metrics.HTTP_CONNECTIONS.live_gauge(registry)
        self._by_address = TokenBuckets(limits.address_requests_per_second, limits.address_request_burst)
        self._refusals = TokenBuckets(_REFUSALS_PER_SECOND, _MAX_REFUSALS)
        proxies = (name.strip() for name in limits.trusted_proxies.split(","))
        self.proxies = frozenset(to_address_key(name) for name in proxies if name)
        self._by_tenant = TokenBuckets(limits.tenant_requests_per_second, limits.tenant_request_burst)
        self._logins = Logins(limits.failed_logins_per_minute)
        self.watchers = OpenCount("event streams", limits.max_watchers_per_tenant, 0, self.refuse)
        self.streams = OpenCount("live streams", limits.max_streams_per_tenant, 0, self.refuse)
        self.uploads = OpenCount("uploads", limits.max_uploads_per_tenant, limits.max_uploads, self.refuse)
        self.slow = FairSlots(SLOW_THREADS, _SLOW_PER_TENANT)
        self.writes = FairSlots(_WRITES, _WRITES_PER_TENANT)

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
        """Whether an address goes on sending requests after many refusals. Counts one more if so."""
        is_flooding = address not in self.proxies and self._refusals.wait_seconds(address) > 0
        if is_flooding:
            self.refuse("flood")
        return is_flooding

    def take_tenant(self, tenant_id: TenantId) -> None:
        """Raises RateLimited if the tenant makes too many requests."""
        if wait := self._by_tenant.take(tenant_id):
            raise self._refuse_tenant(wait)

    def check_login(self, address: str, secret: str | None) -> None:
        """Raises RateLimited if the address has sent too many invalid keys, or this tenant too many requests.

        The key need not be looked up then.
        """
        if wait := self._logins.wait_seconds(address, secret):
            self.refuse("login rate")
            raise RateLimited("too many requests with an invalid API key", retry_after_seconds=wait)
        tenant_id = self._logins.tenant_of(secret)
        if tenant_id is not None and (wait := self._by_tenant.wait_seconds(tenant_id)):
            raise self._refuse_tenant(wait)

    def record_login(self, address: str, secret: str | None, tenant_id: TenantId | None) -> None:
        """Record the tenant that a key belongs to, None if it is invalid."""
        if tenant_id is not None:
            if secret is not None:
                self._logins.succeed(secret, tenant_id)
            return
        self._failed_logins.inc()
        self._logins.fail(address)
        log.warning("login failed", client_address=address)

    def _refuse_tenant(self, wait: float) -> RateLimited:
        self.refuse("tenant rate")
        return RateLimited("this tenant sends too many requests; slow down", retry_after_seconds=wait)


async def delay_refusal(wait_seconds: float) -> None:
    """Wait before a refusal is sent."""
    await asyncio.sleep(min(wait_seconds, _MAX_DELAY_SECONDS))


def edge_of(request: Request) -> Edge:
    """The edge of the app that handles this request."""
    edge: Edge = request.app.state.edge
    return edge


def address_of(scope: Scope) -> str:
    """The client's address as a key for limits."""
    client = scope.get("client")
    return to_address_key(client[0]) if client else "unknown"
