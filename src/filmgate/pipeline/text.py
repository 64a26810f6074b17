"""Stage one: encodes a prompt into the embeddings that the denoiser reads. A repeated prompt is cached."""

import hashlib
import inspect
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from filmgate.pipeline.loading.families.base import call_defaults
from filmgate.pipeline.loading.loader import VideoModel
from filmgate.pipeline.memory_errors import out_of_memory_as
from filmgate.pipeline.requests import ClipRequest
from filmgate.pipeline.wipe import wipe

MAX_ENTRIES = 1024


class TextCache:
    """A least-recently-used cache of embeddings in host memory, bounded in bytes and entries.

    Entries stay in host memory with every offload setting: each is a few MiB, is copied to the device in a
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
        """Store a copy and evict the least recently used entries. An entry above the limit is not stored."""
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


@dataclass(frozen=True, slots=True)
class TextEmbedding:
    """The encoded prompt, as arguments of the diffusers pipeline."""

    arguments: Mapping[str, Tensor | str]
    is_cached: bool = False


@torch.inference_mode()
def encode_text(model: VideoModel, request: ClipRequest, cache: TextCache) -> TextEmbedding:
    """Encode before denoising, so an offloaded text encoder leaves the GPU before the denoiser enters it."""
    pipe, family = model.pipe, model.family
    if not family.embeddings:
        return TextEmbedding({})
    if family.encodes_prompt_with_image(pipe):
        return TextEmbedding({"prompt": request.prompt})
    accepted = inspect.signature(pipe.encode_prompt).parameters
    arguments = {
        "prompt": request.prompt,
        "negative_prompt": request.negative_prompt or "",
        "do_classifier_free_guidance": request.guidance > 1,
        "max_sequence_length": call_defaults(pipe)["max_sequence_length"],
    }
    arguments = {name: value for name, value in arguments.items() if name in accepted}
    device, key = model.placement.device, cache_key(request.owner, arguments)
    if cached := cache.get(key):
        # A copy on a CPU too, because the pipeline may write to its arguments.
        copies = {name: tensor.to(device, copy=True) for name, tensor in cached.items()}
        return TextEmbedding(copies, is_cached=True)
    with out_of_memory_as(
        "the text encoder does not fit into GPU memory; free memory on the GPU, "
        "or set pipeline.offload to model or layers"
    ):
        encoded = pipe.encode_prompt(**arguments, **({"device": device} if "device" in accepted else {}))
    named = zip(family.embeddings, encoded, strict=True)
    embeddings = {name: tensor for name, tensor in named if tensor is not None}
    cache.put(key, embeddings)
    return TextEmbedding(embeddings)
