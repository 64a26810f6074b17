"""Data keys in use: a keyring behind KMS is asked once an hour for each tenant, not once for each value."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from filmgate.jobs import TenantId
from filmgate.store.keys.base import DataKey, Keyring

_CACHE_SIZE = 1024
# AES-GCM with random nonces is safe to 2^32 messages a key; stay far below.
_MAX_USES = 1 << 24


@dataclass(slots=True)
class _Current:
    key: DataKey
    renew_at: float
    uses: int = 0


class DataKeyCache:
    """Hands out a data key per tenant to encrypt with, and opens the ones met when decrypting."""

    def __init__(
        self, keyring: Keyring, *, key_seconds: float = 3600.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._keyring = keyring
        self._key_seconds = key_seconds
        self._clock = clock
        self._current: dict[TenantId, _Current] = {}
        self._opened: OrderedDict[tuple[TenantId, bytes], bytes] = OrderedDict()
        self._lock = threading.Lock()

    def encrypting_key(self, tenant_id: TenantId) -> DataKey:
        # The keyring is asked outside the lock: one that is slow for one tenant holds up no other. Two
        # threads may then make a key each; both open, the later one stays.
        return self._use_current(tenant_id) or self._renew(tenant_id)

    def decrypting_key(self, tenant_id: TenantId, wrapped: bytes) -> bytes:
        with self._lock:
            if (known := self._opened.get((tenant_id, wrapped))) is not None:
                self._opened.move_to_end((tenant_id, wrapped))
                return known
        plain = self._keyring.open_data_key(tenant_id, wrapped)
        with self._lock:
            self._remember(tenant_id, wrapped, plain)
        return plain

    def _use_current(self, tenant_id: TenantId) -> DataKey | None:
        with self._lock:
            current = self._current.get(tenant_id)
            if current is None or current.renew_at <= self._clock() or current.uses >= _MAX_USES:
                return None
            current.uses += 1
            return current.key

    def _renew(self, tenant_id: TenantId) -> DataKey:
        key = self._keyring.new_data_key(tenant_id)
        with self._lock:
            self._current[tenant_id] = _Current(key, self._clock() + self._key_seconds, uses=1)
            self._remember(tenant_id, key.wrapped, key.plain)
        return key

    def _remember(self, tenant_id: TenantId, wrapped: bytes, plain: bytes) -> None:
        self._opened[(tenant_id, wrapped)] = plain
        if len(self._opened) > _CACHE_SIZE:
            self._opened.popitem(last=False)
