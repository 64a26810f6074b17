"""The targets of a clip: a file that appears complete or not at all, or a spool that a store reads.

A spool holds a clip in bounded memory: a muxer writes it, other threads read it as it grows and again
afterwards. The head, which the muxer rewrites at the end, stays in memory. The body is append-only: its last
few MiB stay in memory, and everything before them goes to an unlinked temporary file. That file is encrypted,
because no clip may be on disk in the clear. ADR 17 gives the reasons.
"""

import errno
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import SEEK_CUR, SEEK_END, SEEK_SET, FileIO
from pathlib import Path
from threading import Condition
from typing import IO, BinaryIO, cast

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR

from filmgate.errors import EncodeError, UsageError, WriteError

MEMORY_BYTES = 4 << 20
PIECE_BYTES = 1 << 20
_BLOCK_BYTES = 16
SYNC_EVERY_BYTES = 8 << 20
OnFragment = Callable[[bytes], None]
"""Receives each fragment as it is encoded. Together they are a fragmented MP4 that plays while it grows."""


class ClipSpool:
    """The file of one clip. `publish` completes it, `close` frees its memory and disk space."""

    def __init__(
        self,
        head_bytes: int,
        metadata: Mapping[str, str] | None = None,
        on_fragment: OnFragment | None = None,
    ) -> None:
        self.head_bytes = head_bytes
        self.metadata = metadata or {}
        self.on_fragment = on_fragment
        self.is_finished = False
        self.closed = False
        self._head = bytearray()
        self._body = _Body()
        self._position = 0
        self._changed = Condition()

    @property
    def file(self) -> BinaryIO:
        return cast("BinaryIO", self)

    @property
    def size_bytes(self) -> int:
        return len(self._head) + self._body.size_bytes

    def write(self, data: bytes) -> int:
        """Write at the current position, which is in the head or at the end of the body.

        Raises EncodeError for any other position, and WriteError if the body cannot be kept.
        """
        with self._changed:
            if self.closed:
                raise WriteError("the clip was closed while it was being written")
            split = max(0, self.head_bytes - self._position)
            head, body = data[:split], data[split:]
            if head:
                self._pad_head(self._position)
                self._head[self._position : self._position + len(head)] = head
            if body:
                self._pad_head(self.head_bytes)
                if self._position + len(head) != self.size_bytes:
                    raise EncodeError("the muxer rewrote a part of the clip that may already be uploaded")
                self._body.append(body)
            self._position += len(data)
            self._changed.notify_all()
        return len(data)

    def seek(self, offset: int, whence: int = SEEK_SET) -> int:
        origin = {SEEK_SET: 0, SEEK_CUR: self._position, SEEK_END: self.size_bytes}[whence]
        self._position = origin + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def seekable(self) -> bool:
        return True

    def publish(self) -> int:
        """Complete the clip: readers stop at its end. Returns its size in bytes."""
        with self._changed:
            self.is_finished = True
            self._changed.notify_all()
        return self.size_bytes

    def close(self) -> None:
        """Delete the clip. Readers raise WriteError. Idempotent."""
        with self._changed:
            self.closed = True
            self._body.close()
            self._changed.notify_all()

    def head(self) -> bytes:
        """Return the head of a finished clip; until then it can still change."""
        assert self.is_finished
        return bytes(self._head)

    def follow(self) -> Iterator[bytes]:
        """Yield the body as it grows, until the clip is finished. Raises WriteError once it is closed."""
        start = 0
        while piece := self._wait_for_piece(start):
            start += len(piece)
            yield piece

    def chunks(self) -> Iterator[bytes]:
        """Yield all bytes of a finished clip."""
        yield self.head()
        yield from self.follow()

    def _pad_head(self, size: int) -> None:
        self._head.extend(bytes(max(0, size - len(self._head))))

    def _wait_for_piece(self, start: int) -> bytes:
        # Reading under the lock keeps `close` from closing the file in the middle of a read.
        with self._changed:
            self._changed.wait_for(lambda: self.closed or self.is_finished or self._body.size_bytes > start)
            if self.closed:
                raise WriteError("the clip was closed while it was being read")
            return self._body.read(start, PIECE_BYTES)


class _Body:
    """Append-only bytes: the last ones in memory, the others in an encrypted temporary file.

    AES-CTR lets any offset be decrypted alone. It is safe here because the key is random, never leaves this
    object, and encrypts each offset once.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._file: IO[bytes] | None = None
        self._file_bytes = 0
        self._tail = bytearray()

    @property
    def size_bytes(self) -> int:
        return self._file_bytes + len(self._tail)

    def append(self, data: bytes) -> None:
        self._tail += data
        if len(self._tail) > MEMORY_BYTES:
            with _naming_the_folder():
                self._move_tail_to_file()

    def read(self, start: int, max_bytes: int) -> bytes:
        """Return up to `max_bytes` from `start`; nothing at the end."""
        if self._file is None or start >= self._file_bytes:
            start -= self._file_bytes
            return bytes(self._tail[start : start + max_bytes])
        with _naming_the_folder():
            data = os.pread(self._file.fileno(), min(max_bytes, self._file_bytes - start), start)
            if not data:
                raise OSError(errno.EIO, "unexpected end of file")
        return self._crypt(data, start)

    def close(self) -> None:
        self._tail.clear()
        if self._file is not None:
            self._file.close()

    def _move_tail_to_file(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - `close` closes it
        encrypted, written = memoryview(self._crypt(self._tail, self._file_bytes)), 0
        while written < len(encrypted):  # a write may be short; the next one reports the reason
            written += os.pwrite(self._file.fileno(), encrypted[written:], self._file_bytes + written)
        self._file_bytes += written
        self._tail.clear()

    def _crypt(self, data: bytes | bytearray, offset: int) -> bytes:
        """Encrypt or decrypt the bytes at `offset`."""
        block, skipped_bytes = divmod(offset, _BLOCK_BYTES)
        stream = Cipher(AES256(self._key), CTR(block.to_bytes(_BLOCK_BYTES))).encryptor()
        stream.update(bytes(skipped_bytes))
        return stream.update(data)


@contextmanager
def _naming_the_folder() -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        folder = tempfile.tempdir or "no usable folder"
        raise WriteError(
            f"cannot keep the clip in the temporary folder ({folder}): {exc.strerror}; "
            "free space there or set TMPDIR to another folder"
        ) from exc


class ClipFile:
    """A clip at `path`: written to a part file in the same folder, which `publish` renames into place.

    `close` deletes the part file, if there is one.
    """

    def __init__(
        self, path: Path, metadata: Mapping[str, str], on_fragment: OnFragment | None = None
    ) -> None:
        check_target(path)
        self.metadata = metadata
        self.on_fragment = on_fragment
        self._path = path
        self._part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        self.file = _opened(self._part, path)

    def publish(self) -> int:
        """Flush the file to disk and rename it into place. Returns its size in bytes. Raises WriteError."""
        try:
            os.fsync(self.file.fileno())
            size = os.fstat(self.file.fileno()).st_size
            self.file.close()
            self._part.replace(self._path)
        except OSError as exc:
            raise WriteError(f"cannot write {self._path}: {exc.strerror or exc}") from exc
        finally:
            self.close()
        return size

    def close(self) -> None:
        self.file.close()
        self._part.unlink(missing_ok=True)


ClipTarget = ClipFile | ClipSpool
"""What a muxer writes a clip to: `file`, `metadata`, an optional receiver of fragments."""


class PartFile(FileIO):
    """An unbuffered file that is flushed to disk every few MiB, so that little is left at the end."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "xb")
        self._unsynced = 0

    def write(self, data: bytes) -> int:  # type: ignore[override]
        rest = memoryview(data)
        while rest:  # a write may be short; the next one reports the reason
            rest = rest[super().write(rest) :]
        self._unsynced += len(data)
        if self._unsynced >= SYNC_EVERY_BYTES:
            getattr(os, "fdatasync", os.fsync)(self.fileno())  # macOS has only fsync
            self._unsynced = 0
        return len(data)


def check_target(path: Path, option: str = "--output") -> None:
    """Raise UsageError if a file cannot be written to the path. Call it before the clip is rendered."""
    if path.is_dir() or not path.name:
        raise UsageError(f"{path} is a folder; name a file such as {path / 'clip.mp4'}", option=option)
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} exists and is not a regular file; choose another path", option=option)
    probe = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    _opened(probe, path, option).close()
    probe.unlink()


def _opened(part: Path, path: Path, option: str = "--output") -> BinaryIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return cast("BinaryIO", PartFile(part))
    except OSError as exc:
        raise UsageError(
            f"cannot write to {path.parent}: {exc.strerror}; choose a writable folder", option=option
        ) from exc
