"""The embedded keyring: one key file per tenant, mode 0600, in a folder with mode 0700."""

import hashlib
import os
import secrets
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from filmgate.errors import KeyRefused, KeyringUnavailable
from filmgate.jobs import TENANT_ID_PATTERN, TenantId
from filmgate.store.keys.base import DataKey

_KEY_BYTES = 32
_NONCE_BYTES = 12
# A random value that tells this folder from any other. No tenant can have this name.
_IDENTITY_FILE = ".identity"


class FileKeyring:
    """Tenant keys as files. If two processes create the same key at once, both use the same one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def identity(self) -> str:
        return identify_key(read_or_create_key(self._folder / _IDENTITY_FILE))

    def new_data_key(self, tenant_id: TenantId) -> DataKey:
        plain, nonce = secrets.token_bytes(_KEY_BYTES), secrets.token_bytes(_NONCE_BYTES)
        sealed = AESGCM(self._tenant_key(tenant_id, may_create=True)).encrypt(nonce, plain, _label(tenant_id))
        return DataKey(plain=plain, wrapped=nonce + sealed)

    def open_data_key(self, tenant_id: TenantId, wrapped: bytes) -> bytes:
        key = self._tenant_key(tenant_id, may_create=False)
        try:
            return AESGCM(key).decrypt(wrapped[:_NONCE_BYTES], wrapped[_NONCE_BYTES:], _label(tenant_id))
        except (InvalidTag, ValueError) as exc:
            raise KeyRefused(f"this is not a data key of tenant {tenant_id}") from exc

    def forget(self, tenant_id: TenantId) -> None:
        self._path(tenant_id).unlink(missing_ok=True)

    def _path(self, tenant_id: TenantId) -> Path:
        if not TENANT_ID_PATTERN.fullmatch(tenant_id):
            raise KeyRefused("not a tenant id")
        return self._folder / f"{tenant_id}.key"

    def _tenant_key(self, tenant_id: TenantId, *, may_create: bool) -> bytes:
        path = self._path(tenant_id)
        if may_create:
            return read_or_create_key(path)
        if (key := _read_key(path)) is None:
            raise KeyRefused(f"tenant {tenant_id} has no key; what was encrypted with it cannot be read")
        return key


def read_or_create_key(path: Path) -> bytes:
    """The 256-bit key in this file; creates it if it does not exist. Raises KeyringUnavailable."""
    if (key := _read_key(path)) is not None:
        return key
    try:
        _create_key(path)
    except OSError as exc:
        raise KeyringUnavailable(f"{path} cannot be created: {exc.strerror}") from exc
    if (key := _read_key(path)) is None:
        raise KeyringUnavailable(f"{path} was deleted while it was being created")
    return key


def identify_key(key: bytes) -> str:
    """A public name of a key, from which the key cannot be computed."""
    return hashlib.sha256(b"filmgate identity\0" + key).hexdigest()[:32]


def _label(tenant_id: TenantId) -> bytes:
    return b"filmgate data key\0" + tenant_id.encode()


def _read_key(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            mode, key = os.fstat(file.fileno()).st_mode, file.read()
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise KeyringUnavailable(f"{path} cannot be read: {exc.strerror}") from exc
    if mode & 0o077:
        raise KeyringUnavailable(f"{path} can be read by other users; run: chmod 600 {path}")
    if len(key) != _KEY_BYTES:
        raise KeyringUnavailable(f"{path} is not a key: expected {_KEY_BYTES} bytes, found {len(key)}")
    return key


def _create_key(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with open(draft, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(secrets.token_bytes(_KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        # A hard link never replaces a file: a second process uses the key of the first.
        try:
            path.hardlink_to(draft)
        except FileExistsError:
            return
    finally:
        draft.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
