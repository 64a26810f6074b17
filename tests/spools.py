"""Clips in a spool for tests that need no worker."""

from filmgate.pipeline.encode.clip_file import ClipSpool, SpooledClip
from filmgate.pipeline.encode.mux import head_bytes


def spooled_clip(frames, metadata=None, on_fragment=None):
    metadata = metadata or {}
    return SpooledClip(ClipSpool(head_bytes(frames, metadata)), metadata, on_fragment)
