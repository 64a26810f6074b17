"""One poller for everyone who watches: five hundred event streams cost one query a tick."""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from filmgate.api.services import Stations
from filmgate.errors import FilmgateError, JobNotFound, ObjectNotFound
from filmgate.jobs import Job, JobId, JobState
from filmgate.scheduling.base import JobEvent
from filmgate.store.base import ObjectName, picture_part
from filmgate.telemetry.logs import Log

log = Log("api")

# Jobs whose place in the queue is looked up in one tick; the rest have their turn in the next.
_PLACES_A_TICK = 8
_PRESENCE_SECONDS = 15.0
# More unread news than this and a watcher is too slow: the oldest are dropped, the newest tells all.
_BOX_SIZE = 64


@dataclass(frozen=True, slots=True)
class Sight:
    """What the poller has just seen of a job: its place, what happened since, a new preview picture."""

    job: Job
    position: int | None = None
    events: tuple[JobEvent, ...] = ()
    preview: bytes | None = None
    is_gone: bool = False

    @property
    def is_last(self) -> bool:
        return self.is_gone or self.job.state.is_final


@dataclass(frozen=True, slots=True)
class News:
    """A sight put into words, once for all who watch the job."""

    text: str
    is_last: bool


Narrator = Callable[[Sight], str]
Box = asyncio.Queue[News]


@dataclass(slots=True)
class _Watched:
    """A job with watchers, as the poller last saw it."""

    job: Job
    position: int | None = None
    preview_digest: str = ""
    last_news: News | None = None
    boxes: list[Box] = field(default_factory=list)
    checked_at: float = field(default_factory=time.monotonic)


class Watch:
    """Polls the book for all watched jobs together, and only while there are any.

    `narrate` runs in a thread of the pool: nothing that blocks happens on the event loop.
    """

    def __init__(self, stations: Stations, narrate: Narrator) -> None:
        self._stations = stations
        self._narrate = narrate
        self._watched: dict[JobId, _Watched] = {}
        self._task: asyncio.Task[None] | None = None
        self._turn = 0

    @asynccontextmanager
    async def watching(self, job: Job) -> AsyncIterator[Box]:
        """A box that receives all news of the job that are newer than `job`."""
        box: Box = asyncio.Queue(_BOX_SIZE)
        watched = self._watched.setdefault(job.id, _Watched(job))
        watched.boxes.append(box)
        if watched.job.revision > job.revision and watched.last_news is not None:
            _put(box, watched.last_news)
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
                for watched, news in await self._stations.call(self._look, *self._plan()):
                    watched.last_news = news
                    for box in watched.boxes:
                        _put(box, news)
            except FilmgateError as exc:
                # The database or the store is away: watchers wait, the next tick tries again.
                log.warning("watching failed", code=exc.code)
            await asyncio.sleep(self._stations.settings.watch_seconds)

    def _plan(self) -> tuple[dict[JobId, _Watched], Sequence[_Watched], Sequence[_Watched]]:
        """Everyone watched, those whose place is due, those that may have been removed."""
        everyone = dict(self._watched)
        queued = [w for w in everyone.values() if w.job.state is JobState.QUEUED]
        start = self._turn = (self._turn + _PLACES_A_TICK) % max(len(queued), 1)
        places = (queued + queued)[start : start + min(_PLACES_A_TICK, len(queued))]
        long_ago = time.monotonic() - _PRESENCE_SECONDS
        quiet = [w for w in everyone.values() if w.checked_at < long_ago]
        return everyone, places, quiet[:_PLACES_A_TICK]

    def _look(
        self, everyone: dict[JobId, _Watched], places: Sequence[_Watched], quiet: Sequence[_Watched]
    ) -> list[tuple[_Watched, News]]:
        """Everything that is new, in one visit to the database. The only writer of what was seen."""
        book = self._stations.book
        seen = {job_id: watched.job.revision for job_id, watched in everyone.items()}
        changed = [(everyone[job.id], job) for job in book.changes(seen)]
        looks: list[tuple[_Watched, Callable[[], Sight | None]]]
        looks = [(watched, partial(self._see, watched, job)) for watched, job in changed]
        looks += [(watched, partial(self._place, watched)) for watched in places]
        looks += [(watched, partial(self._check, watched)) for watched in quiet]
        told = []
        for watched, look in looks:
            try:
                sight = look()
            except JobNotFound:
                sight = Sight(watched.job, is_gone=True)
            if sight is not None:
                told.append((watched, News(self._narrate(sight), sight.is_last)))
        return told

    def _place(self, watched: _Watched) -> Sight | None:
        """The job's place, if it has moved."""
        position = self._stations.book.position(watched.job.tenant_id, watched.job.id)
        if position is None or position == watched.position:
            return None
        watched.position = position
        return Sight(watched.job, position)

    def _check(self, watched: _Watched) -> None:
        """Raises JobNotFound for a job that was removed."""
        watched.checked_at = time.monotonic()
        self._stations.book.find(watched.job.tenant_id, watched.job.id)

    def _see(self, watched: _Watched, job: Job) -> Sight:
        """The job's new state, with everything that happened between the last look and this one."""
        book = self._stations.book
        events = book.events(job.tenant_id, job.id, after=watched.job.revision)
        # What happened after the job was read belongs to the next sight.
        told = tuple(event for event in events if event.revision <= job.revision)
        position = book.position(job.tenant_id, job.id) if job.state is JobState.QUEUED else None
        preview = self._new_preview(watched, job)
        watched.job, watched.position, watched.checked_at = job, position, time.monotonic()
        return Sight(job, position, told, preview)

    def _new_preview(self, watched: _Watched, job: Job) -> bytes | None:
        if not job.has_started:
            return None
        name = ObjectName(job.tenant_id, job.id, picture_part("preview", job.fence))
        try:
            picture = b"".join(self._stations.store.read(name))
        except ObjectNotFound:
            return None
        digest = hashlib.sha256(picture).hexdigest()
        is_new, watched.preview_digest = digest != watched.preview_digest, digest
        return picture if is_new else None


def _put(box: Box, news: News) -> None:
    if box.full():
        box.get_nowait()
    box.put_nowait(news)
