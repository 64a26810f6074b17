"""Embeddings of prompts seen before, by digest: a repeated prompt skips the text encoder."""

import hashlib
from collections import OrderedDict
from collections.abc import Mapping

from torch import Tensor

MAX_ENTRIES = 1024


class TextCache:
    """The most recently used embeddings, on the host, within a number of bytes.

    On the host at any offload: an entry is a few MiB, its way to the device a millisecond, and GPU memory
    stays what it was. Keys are digests; no prompt is kept.
    """

    def __init__(self, max_bytes: int, max_entries: int = MAX_ENTRIES) -> None:
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        self._entries: OrderedDict[str, dict[str, Tensor]] = OrderedDict()
        self.held_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, key: str) -> Mapping[str, Tensor] | None:
        """The embeddings, on the host, or None; found is used most recently."""
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        return self._entries[key]

    def keep(self, key: str, embeddings: Mapping[str, Tensor]) -> None:
        """Keep a copy and drop the least recently used until all fit; what never fits is not kept."""
        size = _size(embeddings)
        if key in self._entries or size > self._max_bytes:
            return
        self._entries[key] = {name: tensor.to("cpu", copy=True) for name, tensor in embeddings.items()}
        self.held_bytes += size
        while self.held_bytes > self._max_bytes or len(self._entries) > self._max_entries:
            _, oldest = self._entries.popitem(last=False)
            self.held_bytes -= _size(oldest)


def digest(scope: str, arguments: Mapping[str, object]) -> str:
    """SHA-256 of the scope and everything the encoder is told; no two different askings share one."""
    parts = [scope, *(f"{name}={value!r}" for name, value in sorted(arguments.items()))]
    told = hashlib.sha256()
    for part in parts:
        encoded = part.encode("utf-8", "surrogatepass")
        told.update(len(encoded).to_bytes(8, "big") + encoded)
    return told.hexdigest()


def _size(embeddings: Mapping[str, Tensor]) -> int:
    return sum(tensor.nbytes for tensor in embeddings.values())
