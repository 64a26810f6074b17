"""The finished file: fragments while decoding, then one MP4 with its index first, whole or not at all."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO

from filmgate.errors import UsageError, WriteError
from filmgate.pipeline.encode import OnFragment, remux


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

    def write(self, data: bytes) -> int:
        count = self._file.write(data)
        if self._on_fragment is not None:
            self._on_fragment(bytes(data))
        return count

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


@contextmanager
def clip_file(
    path: Path, metadata: Mapping[str, str], on_fragment: OnFragment | None = None
) -> Iterator[ClipFile]:
    """A ClipFile that leaves nothing behind unless `publish` was called."""
    clip = ClipFile(path, metadata, on_fragment)
    try:
        yield clip
    finally:
        clip.discard()


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
