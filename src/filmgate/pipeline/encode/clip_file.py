"""Where a clip is written: a part file that appears whole or not at all, or memory."""

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
"""Hears of fragments as they are made; together they are a fragmented MP4 that plays while it grows."""


class ClipTarget(Protocol):
    """Where a clip goes: a seekable file, somebody who may hear of fragments, and one publication."""

    @property
    def file(self) -> BinaryIO:
        """Takes the finished clip while it is made; raises OSError when it cannot."""
        ...

    @property
    def metadata(self) -> Mapping[str, str]: ...

    @property
    def on_fragment(self) -> OnFragment | None: ...

    def publish(self) -> int:
        """Make the whole clip appear; its size in bytes. Raises WriteError."""
        ...

    def discard(self) -> None:
        """Leave nothing but what was published. Idempotent."""
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
    """A clip on its way to `path`: written to a part file beside it, which `publish` makes appear at once."""

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
        """Fsync, then rename into place; the size in bytes."""
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
        """Leave nothing but what was published."""
        self.file.close()
        self._part.unlink(missing_ok=True)


class PartFile(FileIO):
    """Writes everything it is given, and sends it to the disk on the way instead of all at the end."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "xb")
        self._unsynced = 0

    def write(self, data: bytes) -> int:  # type: ignore[override]
        rest = memoryview(data)
        while rest:  # a file takes what fits; the write after a short one names the reason
            rest = rest[super().write(rest) :]
        self._unsynced += len(data)
        if self._unsynced >= SYNC_EVERY_BYTES:
            os.fdatasync(self.fileno())
            self._unsynced = 0
        return len(data)


Target = TypeVar("Target", bound=ClipTarget)


@contextmanager
def discarding(target: Target) -> Iterator[Target]:
    """The target, which leaves nothing behind unless `publish` was called."""
    try:
        yield target
    finally:
        target.discard()


@contextmanager
def clip_file(
    path: Path, metadata: Mapping[str, str], on_fragment: OnFragment | None = None
) -> Iterator[ClipFile]:
    """A ClipFile that leaves nothing behind unless `publish` was called."""
    with discarding(ClipFile(path, metadata, on_fragment)) as clip:
        yield clip


def check_target(path: Path) -> None:
    """Refuse a path that cannot be written before any work goes into what would be written there."""
    if path.is_dir() or not path.name:
        raise UsageError(f"{path} is a folder; name a file such as {path / 'clip.mp4'}", option="--output")
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} is not a file, and a clip would take its place", option="--output")
    probe = path.with_name(f".{path.name}.{token_hex(4)}.part")
    _opened(probe, path).close()
    probe.unlink()


def _opened(part: Path, path: Path) -> BinaryIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return cast("BinaryIO", PartFile(part))
    except OSError as exc:
        raise UsageError(
            f"cannot write to {path.parent}: {exc.strerror}; choose a folder you may write to",
            option="--output",
        ) from exc
