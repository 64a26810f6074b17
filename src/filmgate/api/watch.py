"""One poller for all event streams: five hundred watchers cost one query per interval or commit."""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from filmgate.api.services import Services
from filmgate.errors import FilmgateError, JobNotFound, ObjectNotFound
from filmgate.jobs import Job, JobId, JobState
from filmgate.scheduling.records import JobEvent
from filmgate.store.base import ObjectName, picture_part
from filmgate.telemetry.logs import Log

log = Log("api")

# Jobs without changes are checked for removal this often, a few per interval.
_REMOVAL_CHECK_SECONDS = 15.0
_REMOVAL_CHECKS_PER_TICK = 8
# A watcher that is this many events behind loses the oldest ones; the newest has the whole state.
_MAX_UNREAD = 64
# Reading many jobs takes longer: at most this share of the time goes into it, however many commits there are.
_MAX_DUTY = 0.2


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A job as the poller has just read it, with what is new."""

    job: Job
    events: tuple[JobEvent, ...] = ()
    preview: bytes | None = None
    is_removed: bool = False

    @property
    def is_last(self) -> bool:
        return self.is_removed or self.job.state.is_final


@dataclass(frozen=True, slots=True)
class Event:
    """A snapshot as server-sent events, formatted once for all watchers of the job."""

    text: str
    is_last: bool


Formatter = Callable[[Snapshot], str]
EventQueue = asyncio.Queue[Event]


@dataclass(slots=True)
class _Watched:
    """A watched job as the poller last read it."""

    job: Job
    position: int | None = None
    preview_digest: str = ""
    last_event: Event | None = None
    queues: list[EventQueue] = field(default_factory=list)
    checked_at: float = field(default_factory=time.monotonic)


class Watch:
    """Reads all watched jobs together after a commit or an interval, and only while there are any.

    Reading and formatting run on a thread of the pool, never on the event loop.
    """

    def __init__(self, services: Services, format_events: Formatter) -> None:
        self._services = services
        self._format = format_events
        self._watched: dict[JobId, _Watched] = {}
        self._task: asyncio.Task[None] | None = None
        # The wait for commits would keep a thread of the pool from requests.
        self._waiting = ThreadPoolExecutor(1, thread_name_prefix="watch")
        self._is_closed = False

    @asynccontextmanager
    async def watching(self, job: Job) -> AsyncIterator[EventQueue]:
        """A queue that receives all events of the job that are newer than `job`."""
        queue: EventQueue = asyncio.Queue(_MAX_UNREAD)
        watched = self._watched.setdefault(job.id, _Watched(job))
        watched.queues.append(queue)
        if watched.job.revision > job.revision and watched.last_event is not None:
            _put(queue, watched.last_event)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._poll())
        try:
            yield queue
        finally:
            watched.queues.remove(queue)
            if not watched.queues and self._watched.get(job.id) is watched:
                del self._watched[job.id]

    async def close(self) -> None:
        """Stop polling."""
        self._is_closed = True
        self._waiting.shutdown(wait=False)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _poll(self) -> None:
        while self._watched:
            began = time.monotonic()
            try:
                for watched, event in await self._services.call(self._read, dict(self._watched)):
                    watched.last_event = event
                    for queue in watched.queues:
                        _put(queue, event)
            except FilmgateError as exc:
                log.warning("watched jobs could not be read; retrying", code=exc.code)
            await self._wait_for_commit(time.monotonic() - began)

    async def _wait_for_commit(self, took_seconds: float) -> None:
        """Wait for a change of any job, at most for `api.watch_seconds`."""
        seconds = self._services.settings.watch_seconds
        pause = min(took_seconds / _MAX_DUTY, seconds)
        await asyncio.sleep(pause)
        wait, loop = self._services.reader.wait, asyncio.get_running_loop()
        await loop.run_in_executor(self._waiting, wait, seconds - pause, lambda: self._is_closed)

    def _read(self, watched: dict[JobId, _Watched]) -> list[tuple[_Watched, Event]]:
        """Everything that is new. The only writer of `_Watched`."""
        seen = {job_id: each.job.revision for job_id, each in watched.items()}
        changed = {job.id: job for job in self._services.reader.changes(seen)}
        removed = self._find_removed([each for each in watched.values() if each.job.id not in changed])
        found = []
        for each in watched.values():
            is_removed = each.job.id in removed or not self._services.enabled.has(each.job.tenant_id)
            try:
                event = self._read_one(each, changed.get(each.job.id), is_removed=is_removed)
            except Exception as exc:  # noqa: BLE001 - one bad job must not silence the others
                log.error("a watched job could not be read", error=exc, job_id=each.job.id)  # noqa: TRY400
                continue
            if event is not None:
                found.append((each, event))
        return found

    def _read_one(self, watched: _Watched, changed: Job | None, *, is_removed: bool) -> Event | None:
        if is_removed:
            snapshot: Snapshot | None = Snapshot(watched.job, is_removed=True)
        elif changed is not None:
            snapshot = self._read_job(watched, changed)
        else:
            snapshot = self._read_position(watched)
        return Event(self._format(snapshot), snapshot.is_last) if snapshot is not None else None

    def _find_removed(self, unchanged: Sequence[_Watched]) -> set[JobId]:
        since = time.monotonic() - _REMOVAL_CHECK_SECONDS
        due = [each for each in unchanged if each.checked_at < since][:_REMOVAL_CHECKS_PER_TICK]
        return {each.job.id for each in due if not self._exists(each)}

    def _exists(self, watched: _Watched) -> bool:
        watched.checked_at = time.monotonic()
        try:
            self._services.reader.find(watched.job.tenant_id, watched.job.id)
        except JobNotFound:
            return False
        return True

    def _read_position(self, watched: _Watched) -> Snapshot | None:
        """A snapshot if the queue position of an unchanged job has changed."""
        position = self._position(watched.job)
        if position is None or position == watched.position:
            return None
        watched.position = position
        return Snapshot(watched.job)

    def _read_job(self, watched: _Watched, job: Job) -> Snapshot:
        """The new state and all events since the last one, or the removal of the job."""
        try:
            events = self._services.reader.events(job.tenant_id, job.id, after=watched.job.revision)
        except JobNotFound:
            return Snapshot(watched.job, is_removed=True)
        # Events after the job was read belong to the next snapshot.
        known = tuple(event for event in events if event.revision <= job.revision)
        preview = self._read_preview(watched, job)
        watched.job, watched.position, watched.checked_at = job, self._position(job), time.monotonic()
        return Snapshot(job, known, preview)

    def _position(self, job: Job) -> int | None:
        slot = self._services.forecast.slot(job) if job.state is JobState.QUEUED else None
        return slot.position if slot is not None else None

    def _read_preview(self, watched: _Watched, job: Job) -> bytes | None:
        if not job.has_started:
            return None
        name = ObjectName(job.tenant_id, job.id, picture_part("preview", job.fence))
        try:
            picture = b"".join(self._services.store.read(name))
        except ObjectNotFound:
            return None
        except FilmgateError as exc:
            # The state of the job matters more than its picture.
            log.warning("a preview could not be read", code=exc.code, job_id=job.id)
            return None
        digest = hashlib.sha256(picture).hexdigest()
        is_new, watched.preview_digest = digest != watched.preview_digest, digest
        return picture if is_new else None


def _put(queue: EventQueue, event: Event) -> None:
    if queue.full():
        queue.get_nowait()
    queue.put_nowait(event)
