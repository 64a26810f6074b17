"""Size and SHA-256 of a stream of chunks."""

import hashlib
from collections.abc import Iterable, Iterator


class Meter:
    """Iterates over chunks and counts them: size and SHA-256 are final when the iteration ends."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = chunks
        self._digest = hashlib.sha256()
        self.size_bytes = 0

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            self._digest.update(chunk)
            self.size_bytes += len(chunk)
            yield chunk

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()


def digest(chunks: Iterable[bytes]) -> str:
    """The SHA-256 of all chunks."""
    sha256 = hashlib.sha256()
    for chunk in chunks:
        sha256.update(chunk)
    return sha256.hexdigest()
