"""Encrypts small values, such as prompts, with a tenant's data keys."""

import secrets
from collections.abc import Callable

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from filmgate.errors import KeyRefused
from filmgate.jobs import TenantId
from filmgate.store.keys.cache import DataKeys

_VERSION = b"\x01"
_NONCE_BYTES = 12
Rewrap = Callable[[bytes], bytes | None]


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
        """The plain value. Raises KeyRefused if the tenant, the context or any byte is another."""
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
