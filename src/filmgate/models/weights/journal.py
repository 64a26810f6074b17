"""The ranges of a download that are on disk. Each line is written after the bytes of its range.

After a power failure a line may exist without its bytes; the digest of the whole file detects that.
"""

import threading
from pathlib import Path


class Journal:
    """The state of one download. `name` identifies manifest and range size; another name starts over."""

    def __init__(self, path: Path, name: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._ranges: set[tuple[str, int]] = set()
        self._verified: set[str] = set()
        if not self._read(name):
            path.write_text(f"{name}\n")

    def has_range(self, path: str, begin: int) -> bool:
        return path in self._verified or (path, begin) in self._ranges

    def is_verified(self, path: str) -> bool:
        return path in self._verified

    def add_range(self, path: str, begin: int) -> None:
        self._add("range", str(begin), path)

    def add_verified(self, path: str) -> None:
        self._add("whole", "0", path)

    def drop(self, path: str) -> None:
        """Discards all ranges of a file."""
        self._add("bad", "0", path)

    def _add(self, *fields: str) -> None:
        with self._lock:
            with self._path.open("a") as file:
                file.write(" ".join(fields) + "\n")
            self._apply(*fields)

    def _apply(self, verb: str, begin: str, path: str) -> None:
        match verb:
            case "range":
                self._ranges.add((path, int(begin)))
            case "whole":
                self._verified.add(path)
            case "bad":
                self._verified.discard(path)
                self._ranges = {known for known in self._ranges if known[0] != path}

    def _read(self, name: str) -> bool:
        """Loads the journal of an earlier process. Returns False if there is none with this name."""
        try:
            text = self._path.read_text()
        except FileNotFoundError:
            return False
        head, _, rest = text.partition("\n")
        if head != name:
            return False
        whole_lines = rest[: rest.rfind("\n") + 1]
        if len(whole_lines) != len(rest):  # the process was killed while it wrote a line
            self._path.write_text(f"{head}\n{whole_lines}")
        for line in whole_lines.splitlines():
            self._apply(*line.split(" ", 2))
        return True
