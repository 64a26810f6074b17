"""A file system that is full."""

import resource
from contextlib import contextmanager


@contextmanager
def full_disk(room_bytes):
    """No file of this process grows over `room_bytes`: further writes fail with EFBIG."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
