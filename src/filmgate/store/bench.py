"""From the last frame to a link: a clip put while it is made, beside the same clip put afterwards."""

import secrets
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from filmgate.jobs import TenantId, new_job_id
from filmgate.store.base import ObjectName, ObjectStore, clip_part
from filmgate.store.metering import digest

_LINK_SECONDS = 60.0
_HEAD = bytes(12_000)  # the index of a clip of a few seconds


@dataclass(frozen=True, slots=True)
class ClipPlan:
    """A clip of this many bytes that is made in even chunks over these seconds."""

    size_bytes: int
    seconds: float
    chunks: int = 60

    def frames(self) -> Iterator[bytes]:
        """Chunks at the pace of an encoder: each is due at its own time, however long the last one took."""
        chunk = secrets.token_bytes(self.size_bytes // self.chunks)
        began = time.monotonic()
        for number in range(1, self.chunks + 1):
            time.sleep(max(0.0, began + self.seconds * number / self.chunks - time.monotonic()))
            yield chunk


@dataclass(frozen=True, slots=True)
class Endings:
    """Seconds from the last frame to the link, round by round."""

    while_made: tuple[float, ...]
    afterwards: tuple[float, ...]

    @property
    def ratio(self) -> float:
        return statistics.median(self.while_made) / statistics.median(self.afterwards)


def measure_endings(store: ObjectStore, tenant_id: TenantId, plan: ClipPlan, rounds: int) -> Endings:
    """Both ways in turns, so that a busy machine is unfair to neither. Leaves nothing in the store."""
    while_made, afterwards = [], []
    for _ in range(rounds):
        while_made.append(_time_ending(store, tenant_id, plan, _put_while_made))
        afterwards.append(_time_ending(store, tenant_id, plan, _put_afterwards))
    return Endings(tuple(while_made), tuple(afterwards))


Put = Callable[[ObjectStore, ObjectName, Iterable[bytes]], None]


def _put_while_made(store: ObjectStore, name: ObjectName, frames: Iterable[bytes]) -> None:
    """As a worker does: the head last, and then the digest, which takes the bytes in order."""
    made: list[bytes] = []

    def keep() -> Iterator[bytes]:
        for frame in frames:
            made.append(frame)
            yield frame

    store.put(name, keep(), late_head=lambda: _HEAD, head_bytes=len(_HEAD))
    digest([_HEAD, *made])


def _put_afterwards(store: ObjectStore, name: ObjectName, frames: Iterable[bytes]) -> None:
    made = list(frames)
    store.put(name, [_HEAD, *made])


def _time_ending(store: ObjectStore, tenant_id: TenantId, plan: ClipPlan, put: Put) -> float:
    """Seconds from the last frame to a link."""
    name = ObjectName(tenant_id, new_job_id(), clip_part(1))
    ended_at = 0.0

    def watched() -> Iterator[bytes]:
        nonlocal ended_at
        for frame in plan.frames():
            ended_at = time.monotonic()
            yield frame

    try:
        put(store, name, watched())
        store.link(name, _LINK_SECONDS)
        return time.monotonic() - ended_at
    finally:
        store.delete(tenant_id, name.job_id)
