"""Objects as encrypted files: each is written as a draft, flushed, then renamed into place.

<folder>/<tenant>/<job>/<part>     magic | wrapped length (2) | wrapped data key | segments
<folder>/.incoming/                drafts: never listed, deleted after a day
"""

import errno
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Literal, TypeVar

from filmgate.errors import KeyRefused, ObjectCorrupt, ObjectNotFound, StoreFull, StoreUnavailable
from filmgate.jobs import JOB_ID_PATTERN, JobId, TenantId
from filmgate.store.base import (
    PART_PATTERN,
    UNPUBLISHED_SECONDS,
    Chunks,
    Meter,
    ObjectName,
    StoredObject,
)
from filmgate.store.keys.data_keys import DataKeys, Rewrap, Sealer
from filmgate.store.keys.files import flush_folder, identify_key, open_private, read_or_create_key
from filmgate.store.local.links import ObjectLinks
from filmgate.store.local.segments import SegmentReader, encrypt, plain_size

T = TypeVar("T")

MAGIC = b"FGO1"
LINK_PREFIX = "/objects/"
_PREAMBLE = len(MAGIC) + 2
_INCOMING = ".incoming"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_REWRAP_NS = 1_000_000_000


class LocalStore:
    """An ObjectStore on a POSIX file system. Several processes may share the folder."""

    def __init__(self, folder: Path, keys: DataKeys, *, min_free_bytes: int = 0) -> None:
        self._folder = folder
        self._keys = keys
        self._min_free_bytes = min_free_bytes
        with _translated():
            (folder / _INCOMING).mkdir(parents=True, exist_ok=True)
        self.sweep(UNPUBLISHED_SECONDS)
        self._links = ObjectLinks(Sealer(keys))
        self.identity = identify_key(read_or_create_key(folder / ".identity"))

    def put(
        self,
        name: ObjectName,
        chunks: Iterable[bytes],
        *,
        is_durable: bool = True,
        late_head: Callable[[], bytes] | None = None,
        head_bytes: int = 0,
    ) -> StoredObject:
        # With the head last there is no digest: SHA-256 needs the bytes in order.
        meter = Meter(chunks) if late_head is None else None
        draft = self._folder / _INCOMING / secrets.token_hex(16)
        of_caller: list[OSError] = []
        try:
            with _translated(of_caller):
                key = self._keys.encrypting_key(name.tenant_id)
                encrypted = encrypt(key.plain, _associated(name), meter or chunks, late_head, head_bytes)
                pieces = _noting_errors(encrypted, of_caller)
                size_bytes = _write(draft, key.wrapped, pieces, is_durable=is_durable)
                _publish(draft, self._path(name), is_durable=is_durable)
        finally:
            draft.unlink(missing_ok=True)
        return StoredObject(name, size_bytes, meter.sha256 if meter else None, time.time())

    def read(self, name: ObjectName, start: int = 0, stop: int | None = None) -> Chunks:
        self.stat(name)
        return self._stream(name, start, stop)

    def stat(self, name: ObjectName) -> StoredObject:
        with _translated(), _opened(self._path(name)) as file:
            status = os.fstat(file.fileno())
            offset, _ = _read_preamble(file)
            return StoredObject(name, plain_size(status.st_size - offset), modified_at=status.st_mtime)

    def delete(self, tenant_id: TenantId, job_id: JobId, prefix: str = "") -> int:
        # By name: a damaged object, or a file of another program, must not block the deletion.
        home = self._home(tenant_id, job_id)
        with _translated():
            parts = [part for part in _walk_parts(home) if part.startswith(prefix)]
            for part in parts:
                (home / part).unlink(missing_ok=True)
            _remove_empty(home)
            for folder in {_existing(path) for path in (home, *((home / part).parent for part in parts))}:
                flush_folder(folder)
        return len(parts)

    def jobs(self, tenant_id: TenantId) -> Iterator[tuple[JobId, list[StoredObject]]]:
        home = self._folder / tenant_id
        with _translated():
            names = sorted(path.name for path in home.iterdir()) if home.is_dir() else []
        ids = (JobId(name) for name in names if JOB_ID_PATTERN.fullmatch(name))
        return ((job_id, self._parts(tenant_id, job_id)) for job_id in ids)

    def link(self, name: ObjectName, seconds: float) -> str:
        return LINK_PREFIX + self._links.issue(name, seconds)

    def resolve(self, token: str) -> ObjectName:
        return self._links.verify(token)

    def is_nearly_full(self) -> bool:
        with _translated():
            status = os.statvfs(self._folder)
        return status.f_bavail * status.f_frsize < self._min_free_bytes

    def sweep(self, older_than_seconds: float) -> int:
        with _translated():
            drafts = list((self._folder / _INCOMING).iterdir())
            return sum(_delete_older(draft, older_than_seconds) for draft in drafts)

    def rewrap(self, tenant_id: TenantId, rewrap: Rewrap) -> int:
        """Wrap the data keys of all objects of the tenant again. Returns how many changed.

        The header of an object is in the first sector of its file, which a disk writes whole. It is changed
        in place: a copy could bring back an object that is deleted meanwhile.
        """
        changed = 0
        for _, parts in self.jobs(tenant_id):
            for stored in parts:
                # Deleted meanwhile, or damaged before: the others are still rewrapped.
                with suppress(ObjectNotFound, ObjectCorrupt, KeyRefused):
                    changed += self._rewrap_object(stored.name, rewrap)
        return changed

    def _rewrap_object(self, name: ObjectName, rewrap: Rewrap) -> bool:
        with _translated(), _opened(self._path(name), "r+b") as file:
            _, old = _read_preamble(file)
            if (wrapped := rewrap(old)) is None:
                return False
            if len(wrapped) != len(old):
                raise ObjectCorrupt("the data key of an object has an unexpected length")
            status = os.fstat(file.fileno())
            file.seek(_PREAMBLE)
            file.write(wrapped)
            file.flush()
            # A copy that compares size and time (rsync) must take the new header. The current time would make
            # an old object young, which the sweep of orphans goes by.
            os.utime(file.fileno(), ns=(status.st_atime_ns, status.st_mtime_ns + _REWRAP_NS))
            os.fsync(file.fileno())
        return True

    def _parts(self, tenant_id: TenantId, job_id: JobId) -> list[StoredObject]:
        home = self._home(tenant_id, job_id)
        found = []
        for part in sorted(part for part in _walk_parts(home) if PART_PATTERN.fullmatch(part)):
            name = ObjectName(tenant_id, job_id, part)
            try:
                found.append(self.stat(name))
            except ObjectNotFound:
                continue  # deleted by another process after it was listed
            except ObjectCorrupt:
                with _translated(), _opened(home / part) as file:
                    found.append(StoredObject(name, 0, modified_at=os.fstat(file.fileno()).st_mtime))
        return found

    def _home(self, tenant_id: TenantId, job_id: JobId) -> Path:
        return self._path(ObjectName(tenant_id, job_id, "x")).parent

    def _path(self, name: ObjectName) -> Path:
        return self._folder / name.tenant_id / name.job_id / name.part

    def _stream(self, name: ObjectName, start: int, stop: int | None) -> Chunks:
        with _translated(), _opened(self._path(name)) as file:
            offset, wrapped = _read_preamble(file)
            try:
                key = self._keys.decrypting_key(name.tenant_id, wrapped)
            except KeyRefused as exc:
                raise ObjectCorrupt(f"{name.part} is not encrypted with a key of this tenant") from exc
            reader = SegmentReader(file, offset, key, _associated(name))
            end = reader.size_bytes if stop is None else min(stop, reader.size_bytes)
            yield from reader.read(min(start, end), end)


@contextmanager
def _translated(of_caller: Sequence[OSError] = ()) -> Iterator[None]:
    """Errors of the file system as errors of the store, except the caller's own."""
    try:
        yield
    except OSError as exc:
        if exc in of_caller:
            raise
        if exc.errno in _FULL:
            raise StoreFull("the disk of the object store is full") from exc
        raise StoreUnavailable(f"the object store failed: {exc.strerror}") from exc


def _noting_errors(pieces: Iterable[T], errors: list[OSError]) -> Iterator[T]:
    try:
        yield from pieces
    except OSError as exc:
        errors.append(exc)
        raise


@contextmanager
def _opened(path: Path, mode: Literal["rb", "r+b"] = "rb") -> Iterator[BinaryIO]:
    try:
        file = path.open(mode)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as exc:
        raise ObjectNotFound("the object does not exist") from exc
    with file:
        yield file


def _associated(name: ObjectName) -> bytes:
    """Bind the bytes to their name: a file under another name fails verification."""
    return b"filmgate object\0" + str(name).encode()


def _read_preamble(file: BinaryIO) -> tuple[int, bytes]:
    preamble = file.read(_PREAMBLE)
    if preamble[: len(MAGIC)] != MAGIC or len(preamble) < _PREAMBLE:
        raise ObjectCorrupt("a stored object has no preamble")
    wrapped = file.read(int.from_bytes(preamble[len(MAGIC) :]))
    return _PREAMBLE + len(wrapped), wrapped


def _write(draft: Path, wrapped: bytes, encrypted: Iterable[tuple[int, bytes]], *, is_durable: bool) -> int:
    """Write a draft, each piece at its offset. Returns the plain size of the object."""
    with open(draft, "xb", opener=open_private) as file:
        start = end = file.write(MAGIC + len(wrapped).to_bytes(2) + wrapped)
        for offset, data in encrypted:
            if start + offset != end:  # a seek flushes the file's buffer
                file.seek(start + offset)
            file.write(data)
            end = start + offset + len(data)
        size_bytes = file.seek(0, os.SEEK_END)
        if is_durable:
            file.flush()
            os.fsync(file.fileno())
    return plain_size(size_bytes - start)


def _publish(draft: Path, path: Path, *, is_durable: bool) -> None:
    """Rename the draft into place. A durable one also flushes each new folder into its parent."""
    made: list[Path] = []
    while True:
        try:
            made += _make_folders(path.parent)
            draft.replace(path)
            break
        except FileNotFoundError:
            if not draft.exists():
                raise
            # Another process deleted the empty folder in between: create it again.
    if is_durable:
        for folder in {path.parent, *(folder.parent for folder in made)}:
            flush_folder(folder)


def _make_folders(folder: Path) -> list[Path]:
    """Create the folder and its missing parents. Returns the folders that were missing."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)
    return missing


def _walk_parts(home: Path) -> Iterator[str]:
    """Yield the names of the job's files. os.walk skips folders that are deleted during the walk."""
    for folder, _, names in os.walk(home):
        for name in names:
            yield (Path(folder) / name).relative_to(home).as_posix()


def _remove_empty(home: Path) -> None:
    """Delete the job's empty folders, deepest first."""
    for folder, _, _ in os.walk(home, topdown=False):
        try:
            Path(folder).rmdir()
        except OSError as exc:
            if exc.errno not in (errno.ENOTEMPTY, errno.ENOENT):
                raise


def _existing(folder: Path) -> Path:
    """The folder, or the nearest parent that still exists."""
    return folder if folder.is_dir() else _existing(folder.parent)


def _delete_older(draft: Path, seconds: float) -> bool:
    """Delete the draft of a killed process if it is older than `seconds`."""
    try:
        if time.time() - draft.stat().st_mtime <= seconds:
            return False
        draft.unlink()
    except FileNotFoundError:
        return False
    return True
