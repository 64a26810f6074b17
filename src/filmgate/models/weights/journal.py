"""Which ranges of a download are on disk: each line is added after the bytes it speaks of.

After a power cut a line may have outlived its bytes; the digest of the whole file finds that.
"""

import threading
from pathlib import Path


class Journal:
    """The state of one download. `name` binds it to a manifest and a range size: another starts afresh."""

    def __init__(self, path: Path, name: str) -> None:
        self._path = path
        self._guard = threading.Lock()
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
        """Nothing of this file can be trusted."""
        self._add("bad", "0", path)

    def _add(self, *words: str) -> None:
        with self._guard:
            with self._path.open("a") as file:
                file.write(" ".join(words) + "\n")
            self._apply(*words)

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
        """Take over what an earlier process wrote; False when there is nothing of that name."""
        try:
            text = self._path.read_text()
        except FileNotFoundError:
            return False
        head, _, rest = text.partition("\n")
        if head != name:
            return False
        whole_lines = rest[: rest.rfind("\n") + 1]
        if len(whole_lines) != len(rest):  # killed in the middle of a line
            self._path.write_text(f"{head}\n{whole_lines}")
        for line in whole_lines.splitlines():
            self._apply(*line.split(" ", 2))
        return True
