"""The targets of a clip: a file that appears complete or not at all, or a spool that a store reads."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO, Protocol, TypeVar, cast

from filmgate.errors import UsageError, WriteError
from filmgate.pipeline.encode.spool import ClipSpool

SYNC_EVERY_BYTES = 8 << 20

OnFragment = Callable[[bytes], None]
"""Receives each fragment as it is encoded. Together they are a fragmented MP4 that plays while it grows."""


class ClipTarget(Protocol):
    """A seekable file for the muxer, an optional receiver of fragments, and one publication."""

    @property
    def file(self) -> BinaryIO:
        """The file that the muxer writes; raises OSError or WriteError if it cannot be written."""
        ...

    @property
    def metadata(self) -> Mapping[str, str]: ...

    @property
    def on_fragment(self) -> OnFragment | None: ...

    def publish(self) -> int:
        """Publish the complete clip and return its size in bytes. Raises WriteError."""
        ...

    def discard(self) -> None:
        """Delete the clip unless it is published. Idempotent."""
        ...


class SpooledClip:
    """A clip in a spool, for a store to read. After `publish` the caller closes the spool."""

    def __init__(
        self, spool: ClipSpool, metadata: Mapping[str, str], on_fragment: OnFragment | None = None
    ) -> None:
        self.metadata = metadata
        self.on_fragment = on_fragment
        self.spool = spool
        self.file = cast("BinaryIO", spool)

    def publish(self) -> int:
        self.spool.finish()
        return self.spool.size_bytes

    def discard(self) -> None:
        if not self.spool.is_finished:
            self.spool.close()


class ClipFile:
    """A clip at `path`: written to a part file in the same folder, which `publish` renames into place."""

    def __init__(
        self, path: Path, metadata: Mapping[str, str], on_fragment: OnFragment | None = None
    ) -> None:
        check_target(path)
        self.metadata = metadata
        self.on_fragment = on_fragment
        self._path = path
        self._part = path.with_name(f".{path.name}.{token_hex(4)}.part")
        self.file = _opened(self._part, path)

    def publish(self) -> int:
        """Flush the file to disk and rename it into place. Returns its size in bytes."""
        try:
            os.fsync(self.file.fileno())
            size = os.fstat(self.file.fileno()).st_size
            self.file.close()
            self._part.replace(self._path)
        except OSError as exc:
            raise WriteError(f"cannot write {self._path}: {exc.strerror or exc}") from exc
        finally:
            self.discard()
        return size

    def discard(self) -> None:
        self.file.close()
        self._part.unlink(missing_ok=True)


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
            os.fdatasync(self.fileno())
            self._unsynced = 0
        return len(data)


Target = TypeVar("Target", bound=ClipTarget)


@contextmanager
def discarding(target: Target) -> Iterator[Target]:
    """Discard the target at the end of the block unless it is published."""
    try:
        yield target
    finally:
        target.discard()


@contextmanager
def clip_file(
    path: Path, metadata: Mapping[str, str], on_fragment: OnFragment | None = None
) -> Iterator[ClipFile]:
    """Open a ClipFile and discard it at the end of the block unless it is published."""
    with discarding(ClipFile(path, metadata, on_fragment)) as clip:
        yield clip


def check_target(path: Path) -> None:
    """Raise UsageError if a clip cannot be written to the path. Call it before the clip is rendered."""
    if path.is_dir() or not path.name:
        raise UsageError(f"{path} is a folder; name a file such as {path / 'clip.mp4'}", option="--output")
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} exists and is not a regular file; choose another path", option="--output")
    probe = path.with_name(f".{path.name}.{token_hex(4)}.part")
    _opened(probe, path).close()
    probe.unlink()


def _opened(part: Path, path: Path) -> BinaryIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return cast("BinaryIO", PartFile(part))
    except OSError as exc:
        raise UsageError(
            f"cannot write to {path.parent}: {exc.strerror}; choose a writable folder",
            option="--output",
        ) from exc
