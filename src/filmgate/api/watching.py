"""One poller for everyone who watches: five hundred event streams cost one query a tick."""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from filmgate.api.stations import Stations
from filmgate.errors import FilmgateError, JobNotFound, ObjectNotFound
from filmgate.jobs import Job, JobId, JobState
from filmgate.queue.base import JobEvent
from filmgate.store.base import ObjectName
from filmgate.telemetry.logs import Log

log = Log("api")

PREVIEW_PART = "preview.jpg"
# Jobs whose place in the queue is looked up in one tick; the rest have their turn in the next.
_PLACES_A_TICK = 8
_PRESENCE_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Sight:
    """What is known of a watched job: itself, its place, what happened since the last sight."""

    job: Job
    position: int | None = None
    events: tuple[JobEvent, ...] = ()
    preview: bytes | None = None
    is_gone: bool = False


@dataclass(slots=True)
class _Watched:
    """A job with watchers; each watcher has a box that holds its newest sights."""

    job: Job
    position: int | None = None
    boxes: list[asyncio.Queue[Sight]] = field(default_factory=list)
    preview_digest: str = ""
    checked_at: float = field(default_factory=time.monotonic)


# More unread sights than this and a watcher is too slow: the oldest are dropped, the newest tells all.
_BOX_SIZE = 64


class Watch:
    """Polls the book for all watched jobs together, and only while there are any."""

    def __init__(self, stations: Stations) -> None:
        self._stations = stations
        self._watched: dict[JobId, _Watched] = {}
        self._task: asyncio.Task[None] | None = None
        self._turn = 0

    @asynccontextmanager
    async def watching(self, job: Job) -> AsyncIterator[asyncio.Queue[Sight]]:
        """A box that receives every sight of the job from now on."""
        box: asyncio.Queue[Sight] = asyncio.Queue(_BOX_SIZE)
        watched = self._watched.setdefault(job.id, _Watched(job))
        watched.boxes.append(box)
        if watched.job.revision > job.revision:
            self._put(box, Sight(watched.job, watched.position))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._poll())
        try:
            yield box
        finally:
            watched.boxes.remove(box)
            if not watched.boxes and self._watched.get(job.id) is watched:
                del self._watched[job.id]

    async def close(self) -> None:
        """Stop polling; watchers are told by their connections."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _poll(self) -> None:
        while self._watched:
            try:
                await self._tick()
            except FilmgateError as exc:
                # The database or the store is away: watchers wait, the next tick tries again.
                log.warning("watching failed", code=exc.code)
            await asyncio.sleep(self._stations.settings.watch_seconds)

    async def _tick(self) -> None:
        seen = {job_id: watched.job.revision for job_id, watched in self._watched.items()}
        places = self._next_places()
        stale = self._stale()
        sights = await self._stations.call(self._look, seen, places, stale)
        for sight in sights:
            self._show(sight)

    def _look(self, seen: dict[JobId, int], places: Sequence[Job], stale: Sequence[Job]) -> list[Sight]:
        """Everything that is new, in one visit to the database."""
        book = self._stations.book
        changed = {job.id: job for job in book.changes(seen)}
        sights = [self._sight(job, seen[job.id]) for job in changed.values()]
        unchanged = (job for job in places if job.id not in changed)
        sights += [Sight(job, book.position(job.tenant_id, job.id)) for job in unchanged]
        for job in stale:
            try:
                book.find(job.tenant_id, job.id)
            except JobNotFound:
                sights.append(Sight(job, is_gone=True))
        return sights

    def _sight(self, job: Job, revision: int) -> Sight:
        book = self._stations.book
        events = tuple(book.events(job.tenant_id, job.id, after=revision))
        position = book.position(job.tenant_id, job.id) if job.state is JobState.QUEUED else None
        return Sight(job, position, events, self._preview(job))

    def _preview(self, job: Job) -> bytes | None:
        if not job.has_started:
            return None
        try:
            return b"".join(self._stations.store.read(ObjectName(job.tenant_id, job.id, PREVIEW_PART)))
        except ObjectNotFound:
            return None

    def _show(self, sight: Sight) -> None:
        watched = self._watched.get(sight.job.id)
        if watched is None:
            return
        is_news = sight.job.revision > watched.job.revision or sight.is_gone
        if not is_news and sight.position == watched.position:
            return
        watched.job, watched.position = sight.job, sight.position
        watched.checked_at = time.monotonic()
        digest = hashlib.sha256(sight.preview).hexdigest() if sight.preview else watched.preview_digest
        if digest == watched.preview_digest:
            sight = Sight(sight.job, sight.position, sight.events, None, sight.is_gone)
        watched.preview_digest = digest
        for box in watched.boxes:
            self._put(box, sight)

    def _next_places(self) -> list[Job]:
        """Some queued jobs, in turn: their place changes although they do not."""
        queued = [w.job for w in self._watched.values() if w.job.state is JobState.QUEUED]
        if not queued:
            return []
        self._turn = (self._turn + _PLACES_A_TICK) % len(queued)
        return (queued + queued)[self._turn : self._turn + min(_PLACES_A_TICK, len(queued))]

    def _stale(self) -> list[Job]:
        """Jobs long without a change: one of them may have been removed."""
        now = time.monotonic()
        stale = [w for w in self._watched.values() if now - w.checked_at > _PRESENCE_SECONDS]
        for watched in stale[:_PLACES_A_TICK]:
            watched.checked_at = now
        return [watched.job for watched in stale[:_PLACES_A_TICK]]

    @staticmethod
    def _put(box: asyncio.Queue[Sight], sight: Sight) -> None:
        if box.full():
            box.get_nowait()
        box.put_nowait(sight)
