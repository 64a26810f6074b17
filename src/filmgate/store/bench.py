"""From the last frame to a link: a clip put while it is made, beside the same clip put afterwards."""

import secrets
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from filmgate.jobs import TenantId, new_job_id
from filmgate.store.base import ObjectName, ObjectStore, clip_part

_LINK_SECONDS = 60.0


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
    times: dict[Callable[[Iterable[bytes]], Iterable[bytes]], list[float]] = {iter: [], list: []}
    for _ in range(rounds):
        for gather, seconds in times.items():
            seconds.append(_time_ending(store, tenant_id, plan, gather))
    return Endings(tuple(times[iter]), tuple(times[list]))


def _time_ending(
    store: ObjectStore,
    tenant_id: TenantId,
    plan: ClipPlan,
    gather: Callable[[Iterable[bytes]], Iterable[bytes]],
) -> float:
    name = ObjectName(tenant_id, new_job_id(), clip_part(1))
    watch = _LastFrame()
    try:
        store.put(name, gather(watch.over(plan.frames())))
        link = store.link(name, _LINK_SECONDS)
        assert link
        return time.monotonic() - watch.at
    finally:
        store.delete(tenant_id, name.job_id)


class _LastFrame:
    """Remembers when the last chunk was made."""

    def __init__(self) -> None:
        self.at = 0.0

    def over(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            self.at = time.monotonic()
            yield chunk
