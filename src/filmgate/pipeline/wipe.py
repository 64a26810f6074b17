"""Overwrites a tenant's content in memory before it is used for anything else.

Tensors are wiped before their memory returns to torch's allocator, which reuses it as it is. Free memory can
still contain what was not wiped (activations, latents of earlier steps, encoded images), so it is overwritten
before another tenant's job uses it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from filmgate.pipeline.memory_errors import out_of_memory_as

SMALL_BYTES = 1 << 20
"""torch takes requests up to this size from small segments, and larger ones from large segments."""
_SHARED_POOL = (0, 0)


@torch.inference_mode()
def wipe(content: object) -> None:
    """Fill every tensor in these lists and mappings with zeros, in the order of the compute stream.

    Work that was queued before reads the old values; the next user of the memory queues its work behind.
    Nothing is freed and nothing waits.
    """
    if isinstance(content, Tensor):
        # An expanded tensor has one element for many: writing to it as a whole is an error.
        content[tuple(slice(1) if stride == 0 else slice(None) for stride in content.stride())].zero_()
    elif isinstance(content, Mapping):
        for value in content.values():
            wipe(value)
    elif isinstance(content, list | tuple):
        for value in content:
            wipe(value)


@contextmanager
def wiping(content: object) -> Iterator[None]:
    """Wipe this when the block ends, also with an error."""
    try:
        yield
    finally:
        wipe(content)


@contextmanager
def wiping_samples(scheduler: object) -> Iterator[list[Tensor]]:
    """Wipe what a scheduler of diffusers remembers of the samples of a clip; what is in the list is kept.

    Samples have several dimensions, the tables of a schedule have one.
    """
    kept: list[Tensor] = []
    try:
        yield kept
    finally:
        for value in vars(scheduler).values():
            for tensor in value if isinstance(value, list) else [value]:
                is_sample = isinstance(tensor, Tensor) and tensor.ndim > 1
                if is_sample and not any(shares_memory(tensor, other) for other in kept):
                    wipe(tensor)


def shares_memory(one: Tensor, other: Tensor) -> bool:
    """Whether both are views of the same memory."""
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


class FreeBlock(NamedTuple):
    """Free memory that torch reuses for work on this stream."""

    stream: int
    byte_count: int


class DeviceMemory:
    """The memory that torch keeps on one device, and the owner of the content that it may hold.

    A job that was prepared on a stream and never got the device leaves its content in the memory of that
    stream, which then has another owner than the rest.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._owner: str | None = None
        self._preparers: dict[int, str | None] = {}

    def belongs_to_other(self, owner: str | None) -> bool:
        """Whether the memory must be overwritten before this owner uses it."""
        return owner != self._owner

    def prepare_for(self, owner: str | None) -> None:
        """Overwrite what this thread's stream would use again, if it may hold the content of another owner.

        Other streams may be in use by that owner's job.
        """
        if self._device.type != "cuda":
            return
        stream = torch.cuda.current_stream(self._device).cuda_stream
        if self._preparers.get(stream, self._owner) != owner:
            with held_free_memory(self._device, stream) as blocks:
                for _, memory in blocks:
                    memory.zero_()
        self._preparers[stream] = owner

    def switch_owner(self, owner: str | None) -> None:
        """Overwrite all free memory if it may hold the content of another owner.

        Call it while no other job allocates memory. Raises OutOfMemory if one does.
        """
        if self.belongs_to_other(owner):
            overwrite_free_memory(self._device)
            self._owner = owner
            self._preparers.clear()  # no stream has their content any more


def overwrite_free_memory(device: torch.device) -> int:
    """Fill all free memory of torch's CUDA allocator with zeros; returns the bytes. On a CPU there is none.

    In stream order: behind everything that was queued on the streams that used the memory, and before
    everything that they queue from now on. Nothing is freed and the host does not wait.
    """
    if device.type != "cuda":
        return 0
    torch._C._cuda_clearCublasWorkspaces()  # noqa: SLF001 - has no public name; they are free memory now
    current = torch.cuda.current_stream(device)
    with held_free_memory(device) as blocks:
        streams = [_open_stream(handle, device) for handle in sorted({stream for stream, _ in blocks})]
        for stream in streams:
            current.wait_stream(stream)
        for _, memory in blocks:
            memory.zero_()
        for stream in streams:
            stream.wait_stream(current)
        return sum(memory.nbytes for _, memory in blocks)


@contextmanager
def held_free_memory(
    device: torch.device, only_stream: int | None = None
) -> Iterator[list[tuple[int, Tensor]]]:
    """All free memory, or that of one stream, as bytes with the handle of their stream, until the block ends.

    Every block is allocated, so that nothing else can use it meanwhile.
    """
    held: list[tuple[int, Tensor]] = []
    torch.empty(1, device=device)  # the allocator collects memory that the device has finished with
    segments = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
    for handle, byte_count in find_free_blocks(segments, _index_of(device)):
        if only_stream not in (None, handle):
            continue
        with (
            torch.cuda.stream(_open_stream(handle, device)),
            out_of_memory_as(
                "free GPU memory was taken while it was overwritten for another tenant; the job runs again"
            ),
        ):
            held.append((handle, torch.empty(byte_count, dtype=torch.uint8, device=device)))
    yield held


def find_free_blocks(segments: Sequence[Mapping[str, Any]], device_index: int) -> list[FreeBlock]:
    """The requests that get all free memory of `torch.cuda.memory_snapshot()` from the allocator.

    A request for exactly the size of a free block gets such a block; the largest come first. A free block of
    a small segment can be larger than any request that is served from there: it takes several.
    """
    found = []
    for segment in segments:
        if segment["device"] != device_index or tuple(segment["segment_pool_id"]) != _SHARED_POOL:
            continue
        largest = SMALL_BYTES if segment["segment_type"] == "small" else segment["total_size"]
        for block in segment["blocks"]:
            if block["state"] == "inactive":
                whole, rest = divmod(block["size"], largest)
                pieces = [largest] * whole + [rest] * (rest > 0)
                found += [FreeBlock(segment["stream"], piece) for piece in pieces]
    return sorted(found, key=lambda block: block.byte_count, reverse=True)


def _open_stream(handle: int, device: torch.device) -> torch.cuda.Stream:
    if handle == 0:
        return torch.cuda.default_stream(device)
    return torch.cuda.ExternalStream(handle, device)  # type: ignore[no-untyped-call]


def _index_of(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index
