"""Token buckets: how many requests a key of any kind may make per second."""

import hashlib
import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable

from filmgate.jobs import TenantId

# Buckets beyond this number are forgotten, the oldest first, so that memory does not grow with addresses.
MAX_BUCKETS = 10_000
_MAX_KNOWN_KEYS = 1000


class TokenBuckets:
    """One bucket per key. A bucket holds `burst` tokens and regains `per_second`; 0 means no limit."""

    def __init__(self, per_second: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str) -> float:
        """Take a token: 0.0, or the seconds until there is one."""
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
    """Limits attempts with invalid keys per address, and remembers whose the valid keys are.

    A key that was valid a moment ago is still accepted from a limited address: tenants may share one.
    """

    def __init__(self, failures_per_minute: float, clock: Callable[[], float] = time.monotonic) -> None:
        per_minute = failures_per_minute
        self._failures = TokenBuckets(per_minute / 60, max(per_minute, 1.0), clock)
        self._tenants: OrderedDict[bytes, TenantId] = OrderedDict()

    def wait_seconds(self, address: str, secret: str | None) -> float:
        """How long this address must wait before this key is looked up."""
        wait = self._failures.wait_seconds(address)
        return 0.0 if wait and self.tenant_of(secret) is not None else wait

    def tenant_of(self, secret: str | None) -> TenantId | None:
        """The tenant of a key that was valid a moment ago."""
        return self._tenants.get(_digest(secret)) if secret is not None else None

    def fail(self, address: str) -> None:
        self._failures.take(address)

    def succeed(self, secret: str, tenant_id: TenantId) -> None:
        digest = _digest(secret)
        self._tenants[digest] = tenant_id
        self._tenants.move_to_end(digest)
        if len(self._tenants) > _MAX_KNOWN_KEYS:
            self._tenants.popitem(last=False)


def to_address_key(host: str) -> str:
    """The network that one client controls: an IPv4 address, or the /64 of an IPv6 address."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return "unknown"
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.IPv6Address(int(address) >> 64 << 64))
    return str(address)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
