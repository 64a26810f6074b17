"""Encrypts small values (a prompt) with a tenant's key."""

import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from filmgate.errors import KeyRefused
from filmgate.jobs import TenantId
from filmgate.store.keys.base import Keyring
from filmgate.store.keys.cache import DataKeyCache

_VERSION = b"\x01"
_NONCE_BYTES = 12


class Sealer:
    """AES-256-GCM under a data key of the tenant; `context` binds a value to where it is stored."""

    def __init__(self, keyring: Keyring) -> None:
        self._keys = DataKeyCache(keyring)

    def seal(self, tenant_id: TenantId, plain: bytes, context: str) -> bytes:
        """version | wrapped length (2) | wrapped data key | nonce | ciphertext."""
        key = self._keys.encrypting_key(tenant_id)
        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed = AESGCM(key.plain).encrypt(nonce, plain, context.encode())
        return _VERSION + len(key.wrapped).to_bytes(2) + key.wrapped + nonce + sealed

    def open(self, tenant_id: TenantId, sealed: bytes, context: str) -> bytes:
        """The plain value; KeyRefused when the tenant, the context or any byte is not the one sealed."""
        if sealed[:1] != _VERSION:
            raise KeyRefused("a sealed value of an unknown version")
        end = 3 + int.from_bytes(sealed[1:3])
        key = self._keys.decrypting_key(tenant_id, sealed[3:end])
        nonce, rest = sealed[end : end + _NONCE_BYTES], sealed[end + _NONCE_BYTES :]
        try:
            return AESGCM(key).decrypt(nonce, rest, context.encode())
        except (InvalidTag, ValueError) as exc:
            raise KeyRefused("a sealed value does not verify") from exc
