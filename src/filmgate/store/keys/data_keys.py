"""The data keys of a process: a cache in front of the keyring, shared by everything that encrypts, and the
encryption of small values, such as prompts, with them.
"""

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
from filmgate.store.keys.base import DataKey, Keyring

_MAX_OPENED = 4096
_KEY_SECONDS = 3600.0
# AES-GCM with random nonces is safe for 2^32 messages per key; this stays far below.
_MAX_USES = 1 << 24
_VERSION = b"\x01"
_NONCE_BYTES = 12
Rewrap = Callable[[bytes], bytes | None]


@dataclass(slots=True)
class _Current:
    key: DataKey
    renew_at: float
    uses: int = 0


class DataKeys:
    """One data key per tenant to encrypt with, and the opened data keys to decrypt with.

    Open one per process with `open_keys`: each further one repeats the calls to the keyring.
    """

    def __init__(self, keyring: Keyring, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._keyring = keyring
        self._clock = clock
        self._current: dict[TenantId, _Current] = {}
        self._opened: OrderedDict[tuple[TenantId, bytes], tuple[bytes, float]] = OrderedDict()
        self._forgets = 0
        self._lock = threading.Lock()

    @property
    def identity(self) -> str:
        """The identity of the keyring."""
        return self._keyring.identity

    def encrypting_key(self, tenant_id: TenantId) -> DataKey:
        """The tenant's current data key; a new one every hour. Raises what the keyring raises."""
        with self._lock:
            current, forgets = self._use_current(tenant_id), self._forgets
        # Outside the lock, so that a slow call for one tenant does not block the others. Two threads may
        # create a key each; both keys open, and the later one is kept.
        if current is not None and self._keyring.is_current(tenant_id, current.wrapped):
            return current
        key = self._keyring.new_data_key(tenant_id)
        with self._lock:
            if forgets == self._forgets:
                self._current[tenant_id] = _Current(key, self._clock() + _KEY_SECONDS, uses=1)
                self._remember(tenant_id, key.wrapped, key.plain)
        return key

    def decrypting_key(self, tenant_id: TenantId, wrapped: bytes) -> bytes:
        """The plain form of a wrapped data key. Raises what the keyring raises."""
        with self._lock:
            known = self._opened.get((tenant_id, wrapped))
            if known is not None and self._clock() < known[1]:
                self._opened.move_to_end((tenant_id, wrapped))
                return known[0]
            forgets = self._forgets
        plain = self._keyring.open_data_key(tenant_id, wrapped)
        with self._lock:
            if forgets == self._forgets:
                self._remember(tenant_id, wrapped, plain)
        return plain

    def require_own_keys(self) -> None:
        """Raises SettingsError if a key cannot be destroyed because all tenants share it."""
        self._keyring.require_own_keys()

    def forget(self, tenant_id: TenantId) -> None:
        """Destroys the tenant's key and drops its data keys from this process. Idempotent.

        Other processes keep the data keys they have opened for at most an hour.
        """
        try:
            self._keyring.forget(tenant_id)
        finally:
            with self._lock:
                # A call to the keyring that is under way now must not put its key into the cache afterwards.
                self._forgets += 1
                self._current.pop(tenant_id, None)
                for known in [known for known in self._opened if known[0] == tenant_id]:
                    del self._opened[known]

    def _use_current(self, tenant_id: TenantId) -> DataKey | None:
        current = self._current.get(tenant_id)
        if current is None or current.renew_at <= self._clock() or current.uses >= _MAX_USES:
            return None
        current.uses += 1
        return current.key

    def _remember(self, tenant_id: TenantId, wrapped: bytes, plain: bytes) -> None:
        # Opened again after a while: a key that was destroyed must not stay usable in this process.
        self._opened[tenant_id, wrapped] = (plain, self._clock() + _KEY_SECONDS)
        if len(self._opened) > _MAX_OPENED:
            self._opened.popitem(last=False)


class Sealer:
    """AES-256-GCM under a data key of the tenant. `context` binds a value to the place where it is stored."""

    def __init__(self, keys: DataKeys) -> None:
        self._keys = keys

    def seal(self, tenant_id: TenantId, plain: bytes, context: str) -> bytes:
        """Returns version (1) | length of the wrapped key (2) | wrapped data key | nonce | ciphertext."""
        key = self._keys.encrypting_key(tenant_id)
        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed = AESGCM(key.plain).encrypt(nonce, plain, context.encode())
        return _VERSION + len(key.wrapped).to_bytes(2) + key.wrapped + nonce + sealed

    def open(self, tenant_id: TenantId, sealed: bytes, context: str) -> bytes:
        """The plain value. Raises KeyRefused if the tenant, the context or any byte differs."""
        if sealed[:1] != _VERSION:
            raise KeyRefused("the sealed value has an unknown version")
        end = 3 + int.from_bytes(sealed[1:3])
        key = self._keys.decrypting_key(tenant_id, sealed[3:end])
        nonce, rest = sealed[end : end + _NONCE_BYTES], sealed[end + _NONCE_BYTES :]
        try:
            return AESGCM(key).decrypt(nonce, rest, context.encode())
        except (InvalidTag, ValueError) as exc:
            raise KeyRefused("the sealed value does not verify") from exc


def rewrap_sealed(sealed: bytes, rewrap: Rewrap) -> bytes | None:
    """The sealed value with its data key wrapped again; None if that changes nothing."""
    end = 3 + int.from_bytes(sealed[1:3])
    wrapped = rewrap(sealed[3:end])
    return None if wrapped is None else _VERSION + len(wrapped).to_bytes(2) + wrapped + sealed[end:]
