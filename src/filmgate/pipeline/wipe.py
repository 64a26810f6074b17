"""Overwrites tensors with a tenant's content before their memory returns to torch's allocator."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor


@torch.inference_mode()
def wipe(content: object) -> None:
    """Fill every tensor in these lists and mappings with zeros, in the order of the compute stream.

    Work that was queued before reads the old values, and whoever gets the memory next queues its work behind.
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
