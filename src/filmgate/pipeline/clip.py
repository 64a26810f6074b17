"""The finished file: fragments while decoding, then one MP4 with its index first, whole or not at all."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO, Protocol, TypeVar

from filmgate.errors import UsageError, WriteError
from filmgate.pipeline.encode import OnFragment, remux


class ClipTarget(Protocol):
    """Where a clip goes: fragments while it is made, then one publication of the whole."""

    def write(self, data: bytes) -> int: ...

    def publish(self) -> int:
        """Make the whole clip appear, index first; its size in bytes. Raises WriteError."""
        ...

    def discard(self) -> None:
        """Leave nothing but what was published. Idempotent."""
        ...


class ClipMemory:
    """A clip that never touches a disk: for stores that encrypt before they write. `data` once published."""

    def __init__(self, metadata: Mapping[str, str], on_fragment: OnFragment | None = None) -> None:
        self._metadata = metadata
        self._on_fragment = on_fragment
        self._fragments = BytesIO()
        self.closed = False  # asked by PyAV before it ends an abandoned stream
        self.data = b""

    def write(self, data: bytes) -> int:
        if self._on_fragment is not None:
            self._on_fragment(bytes(data))
        return self._fragments.write(data)

    def publish(self) -> int:
        # An index can only move to the front of something with a path, and an anonymous file has one.
        with os.fdopen(os.memfd_create("clip"), "rb") as file:
            self._fragments.seek(0)
            remux(self._fragments, f"/proc/self/fd/{file.fileno()}", self._metadata)
            self.data = file.read()
        self.discard()
        return len(self.data)

    def discard(self) -> None:
        self._fragments = BytesIO()
        self.closed = True


class ClipFile:
    """A clip on its way to `path`. Writes go to a part file beside it; `publish` makes it appear at once."""

    def __init__(
        self, path: Path, metadata: Mapping[str, str], on_fragment: OnFragment | None = None
    ) -> None:
        check_target(path)
        self._path = path
        self._metadata = metadata
        self._on_fragment = on_fragment
        stem = f".{path.name}.{token_hex(4)}"
        self._fragments = path.with_name(f"{stem}.fragments.part")
        self._finished = path.with_name(f"{stem}.part")
        self._file: BinaryIO = _opened(self._fragments, path)

    @property
    def closed(self) -> bool:
        """Asked by PyAV before it ends an abandoned stream."""
        return self._file.closed

    def write(self, data: bytes) -> int:
        rest = memoryview(data)
        while rest:  # an unbuffered file takes what fits; the write after a short one names the reason
            rest = rest[self._file.write(rest) :]
        if self._on_fragment is not None:
            self._on_fragment(bytes(data))
        return len(data)

    def publish(self) -> int:
        """Index first, fsync, then rename into place; the size in bytes."""
        try:
            self._file.close()
            remux(str(self._fragments), str(self._finished), self._metadata)
            with self._finished.open("rb") as file:
                os.fsync(file.fileno())
            size = self._finished.stat().st_size
            self._finished.replace(self._path)
        except OSError as exc:
            raise WriteError(f"cannot write {self._path}: {exc.strerror or exc}") from exc
        finally:
            self.discard()
        return size

    def discard(self) -> None:
        """Leave nothing but what was published."""
        self._file.close()
        self._fragments.unlink(missing_ok=True)
        self._finished.unlink(missing_ok=True)


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
    probe = path.with_name(f".{path.name}.{token_hex(4)}.part")
    _opened(probe, path).close()
    probe.unlink()


def _opened(part: Path, path: Path) -> BinaryIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return part.open("xb", buffering=0)
    except OSError as exc:
        raise UsageError(
            f"cannot write to {path.parent}: {exc.strerror}; choose a folder you may write to",
            option="--output",
        ) from exc
