"""Cached prompt embeddings: a repeated prompt skips the text encoder."""

import hashlib
from collections import OrderedDict
from collections.abc import Mapping

from torch import Tensor

from filmgate.pipeline.wipe import wipe

MAX_ENTRIES = 1024


class TextCache:
    """A least-recently-used cache of embeddings in host memory, bounded in bytes and entries.

    Entries stay in host memory whatever the offload setting: each is a few MiB, is copied to the device in a
    millisecond, and takes no GPU memory. Keys are digests; the cache holds no prompt.
    """

    def __init__(self, max_bytes: int, max_entries: int = MAX_ENTRIES) -> None:
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        self._entries: OrderedDict[str, dict[str, Tensor]] = OrderedDict()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: str) -> Mapping[str, Tensor] | None:
        """The embeddings in host memory, or None. Marks the entry as most recently used."""
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        return self._entries[key]

    def put(self, key: str, embeddings: Mapping[str, Tensor]) -> None:
        """Store a copy and evict the least recently used entries; too large an entry is not stored."""
        size = _size(embeddings)
        if key in self._entries or size > self._max_bytes:
            return
        self._entries[key] = {name: tensor.to("cpu", copy=True) for name, tensor in embeddings.items()}
        self.size_bytes += size
        while self.size_bytes > self._max_bytes or len(self._entries) > self._max_entries:
            _, oldest = self._entries.popitem(last=False)
            self.size_bytes -= _size(oldest)
            wipe(oldest)


def cache_key(scope: str, arguments: Mapping[str, object]) -> str:
    """SHA-256 of the scope and all arguments of the encoder; different inputs never collide."""
    digest = hashlib.sha256()
    for part in (scope, *(f"{name}={value!r}" for name, value in sorted(arguments.items()))):
        encoded = part.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return digest.hexdigest()


def _size(embeddings: Mapping[str, Tensor]) -> int:
    return sum(tensor.nbytes for tensor in embeddings.values())
