"""Errors of GPU memory, with what to do about them."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from filmgate.errors import OutOfMemory


@contextmanager
def out_of_memory_as(message: str) -> Iterator[None]:
    """Raise OutOfMemory with this message if the block runs out of GPU memory."""
    try:
        yield
    except torch.OutOfMemoryError as exc:
        raise OutOfMemory(message) from exc
