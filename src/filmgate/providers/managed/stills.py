"""Stills of a provider's clip, decoded in a child process under resource limits.

Only the child imports av; this process imports neither torch nor av.
"""

import json
import subprocess
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from importlib.util import find_spec
from itertools import chain

from filmgate.jobs import StillKind
from filmgate.telemetry.findings import INSTALL_WORKER

_CHILD = "filmgate.pipeline.encode.still_child"
_CHILD_SECONDS = 60.0
# Each child may hold a whole clip in memory: at most two at a time.
_slots = threading.BoundedSemaphore(2)


class NoStills(Exception):  # noqa: N818 - the clip is valid without
    """No stills could be made. `reason` is logged."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def make_stills(chunks: Iterable[bytes]) -> dict[StillKind, bytes]:
    """Thumbnail and sprite sheet as JPEG. Raises NoStills and the errors of `chunks`."""
    if find_spec("av") is None:
        raise NoStills(f"av is not installed; {INSTALL_WORKER}")
    rest = iter(chunks)
    first = next(rest, b"")
    if first[4:8] != b"ftyp":
        raise NoStills("the clip is not an MP4")
    with (
        _slots,
        subprocess.Popen(
            [sys.executable, "-I", "-m", _CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
        ) as child,
    ):
        alarm = threading.Timer(_CHILD_SECONDS, child.kill)
        alarm.start()
        try:
            _feed(child, chain([first], rest))
            output = child.stdout.read() if child.stdout else b""
            code = child.wait()
        finally:
            alarm.cancel()
            child.kill()
    if code != 0:  # its output may end in the middle of a picture
        raise NoStills("the clip cannot be decoded")
    return _unpack(output)


def _feed(child: "subprocess.Popen[bytes]", chunks: Iterable[bytes]) -> None:
    assert child.stdin is not None
    # A child that fails early closes the pipe; its exit code is not 0 then.
    with suppress(BrokenPipeError), child.stdin as pipe:
        for chunk in chunks:
            pipe.write(chunk)


def _unpack(output: bytes) -> dict[StillKind, bytes]:
    """Parse a JSON line with the length of each picture, followed by the pictures."""
    head, _, rest = output.partition(b"\n")
    stills = {}
    for kind, size in json.loads(head).items():
        stills[StillKind(kind)], rest = rest[:size], rest[size:]
    return stills
