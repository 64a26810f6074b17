"""One poller for all event streams: five hundred watchers cost one query per interval or commit."""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from filmgate.api.services import Services
from filmgate.errors import FilmgateError, JobNotFound, ObjectNotFound
from filmgate.jobs import Job, JobId, JobState
from filmgate.scheduling.records import JobEvent
from filmgate.store.base import ObjectName, picture_part
from filmgate.telemetry.logs import Log
from filmgate.telemetry.periodic import attempt

log = Log("api")

_TASK = "event streams"

# Jobs without changes are checked for removal this often.
_REMOVAL_CHECK_SECONDS = 15.0
# The stream of a watcher that is this many events behind ends: a stream never skips an event.
_MAX_UNREAD = 64
# With a slow store, previews that are not read in this time are read at a later change of their jobs: events
# do not wait for them.
_MAX_PREVIEW_SECONDS = 0.25
# Reading many jobs takes longer: at most this share of the time goes into it, however many commits there are.
_MAX_DUTY = 0.2


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A job as the poller has just read it, with what is new.

    `is_removed` also if its tenant was disabled.
    """

    job: Job
    events: tuple[JobEvent, ...] = ()
    preview: bytes | None = None
    position: int | None = None
    is_removed: bool = False

    @property
    def is_last(self) -> bool:
        return self.is_removed or self.job.state.is_final


@dataclass(frozen=True, slots=True)
class Event:
    """A snapshot as server-sent events, formatted once for all watchers of the job."""

    text: str
    is_last: bool


_TOO_SLOW = Event(": too slow; reconnect with Last-Event-ID\n\n", is_last=True)

Formatter = Callable[[Snapshot], str]
EventQueue = asyncio.Queue[Event]


@dataclass(slots=True)
class _Watched:
    """A watched job as the poller last read it. `repeat_from` is an older state that a new watcher has."""

    job: Job
    position: int | None = None
    preview_digest: str = ""
    repeat_from: Job | None = None
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
        self._preview_seconds = 0.0

    @asynccontextmanager
    async def watching(self, job: Job) -> AsyncIterator[EventQueue]:
        """A queue that receives all events of the job that are newer than `job`."""
        queue: EventQueue = asyncio.Queue(_MAX_UNREAD)
        watched = self._watched.setdefault(job.id, _Watched(job))
        watched.queues.append(queue)
        if job.revision < (watched.repeat_from or watched.job).revision:
            watched.repeat_from = job
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
            for each in self._watched.values():
                each.job, each.repeat_from = each.repeat_from or each.job, None
            read = partial(self._read, dict(self._watched))
            for watched, event in await self._services.call(attempt, _TASK, read) or ():
                for queue in watched.queues:
                    _put(queue, event)
            await self._wait_for_commit(time.monotonic() - began)

    async def _wait_for_commit(self, took_seconds: float) -> None:
        """Wait for a change of any job, at most for `api.watch_seconds`."""
        seconds = self._services.settings.watch_seconds
        pause = min(took_seconds / _MAX_DUTY, seconds)
        await asyncio.sleep(pause)
        wait = partial(self._services.reader.wait, seconds - pause, lambda: self._is_closed)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._waiting, attempt, _TASK, wait)

    def _read(self, watched: dict[JobId, _Watched]) -> list[tuple[_Watched, Event]]:
        """Everything that is new. `_poll` changes no watched job while this runs."""
        self._preview_seconds = 0.0
        seen = {job_id: each.job.revision for job_id, each in watched.items()}
        changed = {job.id: job for job in self._services.reader.changes(seen)}
        removed = self._find_removed([each for each in watched.values() if each.job.id not in changed])
        tenants = {each.job.tenant_id for each in watched.values()}
        disabled = {tenant_id for tenant_id in tenants if not self._services.enabled.has(tenant_id)}
        found = []
        for each in watched.values():
            is_removed = each.job.id in removed or each.job.tenant_id in disabled
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
        if snapshot is None:
            return None
        event = Event(self._format(snapshot), snapshot.is_last)
        # Last, so that a job that cannot be formatted now is read again.
        watched.job, watched.position, watched.checked_at = snapshot.job, snapshot.position, time.monotonic()
        return event

    def _find_removed(self, unchanged: Sequence[_Watched]) -> set[JobId]:
        now = time.monotonic()
        due = {each.job.id: each for each in unchanged if each.checked_at < now - _REMOVAL_CHECK_SECONDS}
        if not due:
            return set()
        for each in due.values():
            each.checked_at = now
        # `find` would decrypt the prompts: one tenant's unusable key would end the read for all of them.
        return due.keys() - {job.id for job in self._services.reader.changes(dict.fromkeys(due, -1))}

    def _read_position(self, watched: _Watched) -> Snapshot | None:
        """A snapshot if the queue position of an unchanged job has changed."""
        position = self._position(watched.job)
        if position is None or position == watched.position:
            return None
        return Snapshot(watched.job, position=position)

    def _read_job(self, watched: _Watched, job: Job) -> Snapshot:
        """The new state and all events since the last one, or the removal of the job."""
        try:
            events = self._services.reader.events(job.tenant_id, job.id, after=watched.job.revision)
        except JobNotFound:
            return Snapshot(watched.job, is_removed=True)
        # Events after the job was read belong to the next snapshot.
        known = tuple(event for event in events if event.revision <= job.revision)
        return Snapshot(job, known, self._read_preview(watched, job), self._position(job))

    def _position(self, job: Job) -> int | None:
        slot = self._services.forecast.get().slot(job) if job.state is JobState.QUEUED else None
        return slot.position if slot is not None else None

    def _read_preview(self, watched: _Watched, job: Job) -> bytes | None:
        if not job.has_started or self._preview_seconds >= _MAX_PREVIEW_SECONDS:
            return None
        began = time.monotonic()
        name = ObjectName(job.tenant_id, job.id, picture_part("preview", job.fence))
        try:
            picture = b"".join(self._services.store.read(name))
        except ObjectNotFound:
            return None
        except FilmgateError as exc:
            # The state of the job matters more than its picture.
            log.warning("a preview could not be read", code=exc.code, job_id=job.id)
            return None
        finally:
            self._preview_seconds += time.monotonic() - began
        digest = hashlib.sha256(picture).hexdigest()
        is_new, watched.preview_digest = digest != watched.preview_digest, digest
        return picture if is_new else None


def _put(queue: EventQueue, event: Event) -> None:
    if queue.full():
        while not queue.empty():
            queue.get_nowait()
        event = _TOO_SLOW
    queue.put_nowait(event)
