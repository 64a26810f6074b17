"""The embedded keyring: one key file per tenant, mode 0600, in a folder with mode 0700.

<tenant>.key        wraps new data keys        <tenant>.<number>.key      keys before a rotation: only unwrap
"""

import fcntl
import hashlib
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from filmgate.errors import KeyRefused, KeyringUnavailable
from filmgate.jobs import TENANT_ID_PATTERN, TenantId
from filmgate.store.keys.base import DataKey

_KEY_BYTES = 32
_NONCE_BYTES = 12
# A random value that identifies this folder. No tenant can have this name.
_IDENTITY_FILE = ".identity"


class FileKeyring:
    """Tenant keys as files. If two processes create a key at the same time, both use the same key."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._secret: bytes | None = None

    @property
    def identity(self) -> str:
        return identify_key(self.installation_secret())

    def installation_secret(self) -> bytes:
        """256 random bits that belong to no tenant: forgetting a tenant does not touch them."""
        if self._secret is None:
            self._secret = read_or_create_key(self._folder / _IDENTITY_FILE)
        return self._secret

    def new_data_key(self, tenant_id: TenantId) -> DataKey:
        plain = secrets.token_bytes(_KEY_BYTES)
        return DataKey(plain, _wrap(self._tenant_key(tenant_id, may_create=True), tenant_id, plain))

    def open_data_key(self, tenant_id: TenantId, wrapped: bytes) -> bytes:
        current = self._tenant_key(tenant_id, may_create=False)
        for key in (current, *filter(None, map(_read_key, self._old_paths(tenant_id)))):
            if (plain := _unwrap(key, tenant_id, wrapped)) is not None:
                return plain
        raise KeyRefused(f"this is not a data key of tenant {tenant_id}")

    def is_current(self, tenant_id: TenantId, wrapped: bytes) -> bool:
        key = _read_key(self._path(tenant_id))
        return key is not None and _unwrap(key, tenant_id, wrapped) is not None

    def require_own_keys(self) -> None:
        """Every tenant has a file."""

    def forget(self, tenant_id: TenantId) -> None:
        self._require_folder()
        if self._folder.is_dir():
            with _locked(self._folder):
                self._delete([*self._old_paths(tenant_id), self._path(tenant_id)])

    def rotate(self, tenant_id: TenantId) -> None:
        """Wrap new data keys with a new key. The old key stays to unwrap until `prune`."""
        path = self._path(tenant_id)
        if _read_key(path) is None:
            raise KeyRefused(f"tenant {tenant_id} has no key yet; its first job creates one")
        draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        try:
            _write_key(draft, secrets.token_bytes(_KEY_BYTES))
            with _locked(path.parent):
                numbers = [int(old.name.split(".")[1]) for old in self._old_paths(tenant_id)]
                # The old key has its second name before the new key replaces it: it is never missing.
                path.with_name(f"{tenant_id}.{max(numbers, default=0) + 1}.key").hardlink_to(path)
                draft.replace(path)
                flush_folder(path.parent)
        except OSError as exc:
            raise KeyringUnavailable(f"{path} cannot be replaced: {exc.strerror}") from exc
        finally:
            draft.unlink(missing_ok=True)

    def rewrap(self, tenant_id: TenantId, wrapped: bytes) -> bytes | None:
        """The same data key wrapped with the current key; None if it already is. Raises KeyRefused."""
        if self.is_current(tenant_id, wrapped):
            return None
        plain = self.open_data_key(tenant_id, wrapped)
        return _wrap(self._tenant_key(tenant_id, may_create=False), tenant_id, plain)

    def rotated_seconds_ago(self, tenant_id: TenantId) -> float:
        """How long ago the current key was created. Raises KeyRefused."""
        try:
            return time.time() - self._path(tenant_id).stat().st_mtime
        except FileNotFoundError as exc:
            raise KeyRefused(f"tenant {tenant_id} has no key yet; its first job creates one") from exc

    def prune(self, tenant_id: TenantId) -> int:
        """Delete the keys before the current one. Returns how many. What they wrap becomes unreadable."""
        old = self._old_paths(tenant_id)
        self._delete(old)
        return len(old)

    def copy_to(self, folder: Path) -> None:
        """Copy all keys to an existing folder. Raises KeyringUnavailable."""
        _copy_keys(self._folder, folder)

    def copy_from(self, folder: Path) -> None:
        """Copy all keys from a backup. Raises KeyringUnavailable if it is missing or a key here differs."""
        if not folder.is_dir():
            raise KeyringUnavailable(f"{folder} is not a folder; name the one with the keys of the backup")
        _copy_keys(folder, self._folder)

    def _delete(self, paths: list[Path]) -> None:
        try:
            for path in paths:
                path.unlink(missing_ok=True)
            flush_folder(self._folder)  # a destroyed key must not return after a power failure
        except OSError as exc:
            raise KeyringUnavailable(f"keys in {self._folder} cannot be deleted: {exc.strerror}") from exc

    def _old_paths(self, tenant_id: TenantId) -> list[Path]:
        self._path(tenant_id)  # checks the id
        return sorted(self._folder.glob(f"{tenant_id}.[0-9]*.key"))

    def _path(self, tenant_id: TenantId) -> Path:
        if not TENANT_ID_PATTERN.fullmatch(tenant_id):
            raise KeyRefused("not a tenant id")
        return self._folder / f"{tenant_id}.key"

    def _tenant_key(self, tenant_id: TenantId, *, may_create: bool) -> bytes:
        path = self._path(tenant_id)
        if (key := _read_key(path)) is not None:
            return key
        if not may_create:
            raise KeyRefused(f"tenant {tenant_id} has no key; what was encrypted with it cannot be read")
        self._require_folder()
        return read_or_create_key(path)

    def _require_folder(self) -> None:
        """Raises KeyringUnavailable if the folder of this process is not mounted.

        A key that is created in its place would be lost, and one that is destroyed there would still exist.
        """
        if self._secret not in {None, _read_key(self._folder / _IDENTITY_FILE)}:
            raise KeyringUnavailable(f"{self._folder} has lost its keys; mount or restore the folder")


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


def _wrap(key: bytes, tenant_id: TenantId, plain: bytes) -> bytes:
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, plain, _label(tenant_id))


def _unwrap(key: bytes, tenant_id: TenantId, wrapped: bytes) -> bytes | None:
    """The data key; None if it is wrapped with another key of the tenant, or with no key of the tenant."""
    try:
        return AESGCM(key).decrypt(wrapped[:_NONCE_BYTES], wrapped[_NONCE_BYTES:], _label(tenant_id))
    except (InvalidTag, ValueError):
        return None


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


def _copy_keys(source: Path, target: Path) -> None:
    try:
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in sorted([*source.glob("*.key"), *source.glob(_IDENTITY_FILE)]):
            copy, key = target / path.name, path.read_bytes()
            if not copy.exists():
                _write_key(copy, key)
            elif copy.read_bytes() != key:
                raise KeyringUnavailable(f"{copy} contains another key; use a folder without keys")
        flush_folder(target)
    except OSError as exc:
        raise KeyringUnavailable(f"the keys could not be copied to {target}: {exc.strerror}") from exc


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One rotation or destruction of keys at a time, because a rotation would replace the new key of another,
    or keep a copy of a key that is being destroyed. A process that dies releases the lock.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as exc:
        raise KeyringUnavailable(f"{folder} cannot be locked: {exc.strerror}") from exc
    try:
        yield
    finally:
        os.close(descriptor)


def _create_key(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        _write_key(draft, secrets.token_bytes(_KEY_BYTES))
        # A hard link never replaces a file: a second process uses the key of the first.
        try:
            path.hardlink_to(draft)
        except FileExistsError:
            return
    finally:
        draft.unlink(missing_ok=True)
    flush_folder(path.parent)


def _write_key(path: Path, key: bytes) -> None:
    with open(path, "xb", opener=open_private) as file:
        file.write(key)
        file.flush()
        os.fsync(file.fileno())


def open_private(path: str, flags: int) -> int:
    """An opener for `open` that creates files with mode 0600."""
    return os.open(path, flags, 0o600)


def flush_folder(folder: Path) -> None:
    """Make new, renamed and deleted entries of a folder durable. A missing folder has none."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
