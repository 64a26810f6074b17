"""Clips in a spool for tests that need no worker."""

from filmgate.pipeline.encode.clip_file import ClipSpool
from filmgate.pipeline.encode.mux import head_bytes


def spooled_clip(frames, metadata=None, on_fragment=None):
    return ClipSpool(head_bytes(frames, metadata or {}), metadata, on_fragment)
