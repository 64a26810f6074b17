"""Encrypts small values (a prompt) with a tenant's key, without asking the keyring for each one."""

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from filmgate.errors import KeyRefused
from filmgate.jobs import TenantId
from filmgate.keyring.base import DataKey, Keyring

_VERSION = b"\x01"
_NONCE_BYTES = 12
_CACHE_SIZE = 1024
# AES-GCM with random nonces is safe to 2^32 messages a key; stay far below.
_MAX_USES = 1 << 24


@dataclass(slots=True)
class _Current:
    key: DataKey
    renew_at: float
    uses: int = 0


class Sealer:
    """AES-256-GCM under a data key per tenant and hour; `context` binds a value to where it is stored."""

    def __init__(
        self, keyring: Keyring, *, key_seconds: float = 3600.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._keyring = keyring
        self._key_seconds = key_seconds
        self._clock = clock
        self._current: dict[TenantId, _Current] = {}
        self._opened: OrderedDict[tuple[TenantId, bytes], bytes] = OrderedDict()
        self._lock = threading.Lock()

    def seal(self, tenant_id: TenantId, plain: bytes, context: str) -> bytes:
        """version | wrapped length (2) | wrapped data key | nonce | ciphertext."""
        key = self._sealing_key(tenant_id)
        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed = AESGCM(key.plain).encrypt(nonce, plain, context.encode())
        return _VERSION + len(key.wrapped).to_bytes(2) + key.wrapped + nonce + sealed

    def open(self, tenant_id: TenantId, sealed: bytes, context: str) -> bytes:
        """The plain value; KeyRefused when the tenant, the context or any byte is not the one sealed."""
        if sealed[:1] != _VERSION:
            raise KeyRefused("a sealed value of an unknown version")
        end = 3 + int.from_bytes(sealed[1:3])
        key = self._opening_key(tenant_id, sealed[3:end])
        try:
            return AESGCM(key).decrypt(
                sealed[end : end + _NONCE_BYTES], sealed[end + _NONCE_BYTES :], context.encode()
            )
        except (InvalidTag, ValueError) as exc:
            raise KeyRefused("a sealed value does not verify") from exc

    def _sealing_key(self, tenant_id: TenantId) -> DataKey:
        with self._lock:
            current = self._current.get(tenant_id)
            if current is None or current.renew_at <= self._clock() or current.uses >= _MAX_USES:
                key = self._keyring.new_data_key(tenant_id)
                current = self._current[tenant_id] = _Current(key, self._clock() + self._key_seconds)
                self._remember(tenant_id, key.wrapped, key.plain)
            current.uses += 1
            return current.key

    def _opening_key(self, tenant_id: TenantId, wrapped: bytes) -> bytes:
        with self._lock:
            if (known := self._opened.get((tenant_id, wrapped))) is not None:
                self._opened.move_to_end((tenant_id, wrapped))
                return known
            plain = self._keyring.open_data_key(tenant_id, wrapped)
            self._remember(tenant_id, wrapped, plain)
            return plain

    def _remember(self, tenant_id: TenantId, wrapped: bytes, plain: bytes) -> None:
        self._opened[(tenant_id, wrapped)] = plain
        if len(self._opened) > _CACHE_SIZE:
            self._opened.popitem(last=False)
