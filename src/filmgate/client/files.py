"""A download that appears under its name only when it is complete."""

import os
from pathlib import Path
from typing import IO, Self

from filmgate.errors import WriteError


class PartialFile:
    """Writes PATH.part and renames it at the end of the block; an error leaves no file.

    The folder and PATH.part are created with the first bytes, so a request that fails leaves no folder. The
    renamed file would replace a device or a pipe: they are refused, as folders are.
    """

    def __init__(self, path: Path) -> None:
        if path.exists() and not path.is_file():
            raise WriteError(f"{path} cannot be written: it is not a regular file; choose another path")
        self._path = path.resolve()  # the file of a symbolic link, such as /dev/stdout, not the link
        self._part = self._path.with_name(f"{self._path.name}.part")
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def write(self, chunk: bytes) -> None:
        try:
            self._opened().write(chunk)
        except OSError as exc:
            raise self._failure(exc) from exc

    def __exit__(self, kind: object, *_error: object) -> None:
        if kind is not None and self._file is None:
            return
        try:
            self._opened().close()  # writes what is buffered
            if kind is None:
                os.replace(self._part, self._path)  # noqa: PTH105 - replaces on every platform
        except OSError as exc:
            if kind is None:
                raise self._failure(exc) from exc
        finally:
            if self._file is not None:
                self._part.unlink(missing_ok=True)

    def _opened(self) -> IO[bytes]:
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._part.open("wb")
        return self._file

    def _failure(self, error: OSError) -> WriteError:
        return WriteError(f"{self._path} cannot be written: {error.strerror}")
