"""Server-sent events contain the listed fields and no others."""

import asyncio
import json
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest

from filmgate.api import events
from filmgate.api.events import EVENT_FIELDS, format_events
from filmgate.api.schemas import Video
from filmgate.api.watch import Event, Snapshot, Watch, _put
from filmgate.errors import KeyringUnavailable, ObjectNotFound, QueueUnavailable
from filmgate.jobs import Job, JobId, JobState, Progress, Stage, TenantId, WorkerId
from filmgate.models.cards import open_registry
from filmgate.scheduling.records import JobEvent
from filmgate.settings import ApiSettings
from tests.tickets import PROMPT, make_ticket, queued_job

SECRET = "not for clients"
SENT_FIELDS = EVENT_FIELDS | {"attempt", "reason", "at", "is_replay"}

QUEUED = queued_job(make_ticket(), now=1.0)
RUNNING = replace(
    QUEUED,
    state=JobState.RUNNING,
    started_at=1.0,
    progress=Progress(Stage.DENOISE, 1, 8, 0.1),
    worker_id=WorkerId(SECRET),
    device=SECRET,
)


class NoForecast:
    def get(self):
        return self

    def predict(self, _job, _now):
        return None, 3.0


@pytest.fixture
def services():
    return SimpleNamespace(forecast=NoForecast(), models=open_registry("flipbook"), settings=ApiSettings())


def parse(text):
    """(name, data) of every event in the text."""
    messages = [dict(line.split(": ", 1) for line in event.splitlines()) for event in text.split("\n\n")[:-1]]
    return [(message["event"], json.loads(message["data"])) for message in messages]


def test_a_state_event_has_exactly_the_listed_fields(services):
    for job in (QUEUED, RUNNING):
        ((name, data),) = parse(format_events(services, Snapshot(job)))
        assert (name, data.keys()) == ("progress", SENT_FIELDS)


def test_the_listed_fields_are_fields_of_the_video_object():
    assert set(Video.model_fields) >= EVENT_FIELDS
    settings = {"route_reason", "fps", "steps", "seed", "guidance", "lora", "negative_prompt"}
    settings |= {"pixel_format", "source", "input_reference"}
    assert set(Video.model_fields) - EVENT_FIELDS == {"prompt", "screening", "warnings"} | settings


def test_a_new_field_of_a_job_or_a_video_is_not_sent(services, monkeypatch):
    @dataclass(frozen=True, slots=True)
    class WiderJob(Job):
        note: str = SECRET

    class WiderVideo(Video):
        note: str = SECRET

    monkeypatch.setattr(events, "Video", WiderVideo)
    wider = WiderJob(**{name: getattr(RUNNING, name) for name in Job.__dataclass_fields__})
    text = format_events(services, Snapshot(wider))
    assert "progress" in text
    assert SECRET not in text
    assert PROMPT not in text


def test_a_replayed_event_has_the_same_fields_as_a_current_one(services):
    missed = JobEvent(3, 2.0, JobState.RUNNING, Stage.TEXT, 1, None)
    last = JobEvent(4, 2.5, JobState.RUNNING, Stage.DENOISE, 1, None)
    (replayed, current) = parse(format_events(services, Snapshot(RUNNING, (missed, last))))
    assert (replayed[0], replayed[1].keys()) == ("status", SENT_FIELDS)
    assert (current[0], current[1].keys()) == ("status", SENT_FIELDS)


def test_a_preview_and_a_removal_have_one_field_each(services):
    (_, preview) = parse(format_events(services, Snapshot(RUNNING, preview=b"jpeg")))
    assert (preview[0], preview[1].keys()) == ("preview", {"image"})
    (removal,) = parse(format_events(services, Snapshot(RUNNING, is_removed=True)))
    assert removal == ("gone", {"id": RUNNING.id})


def test_the_stream_of_a_client_that_does_not_read_ends_and_leaves_no_event_out():
    class Source:
        @asynccontextmanager
        async def watching(self, _job):
            queue = asyncio.Queue(4)
            for number in range(5):
                _put(queue, Event(f"{number}\n", is_last=False))
            yield queue

    async def follow():
        return [text async for text in events._follow(Source(), RUNNING, "opening\n")]

    opening, end = asyncio.run(follow())
    assert (opening, end.startswith(":")) == ("opening\n", True), "a comment; the client reconnects"


class Reader:
    """Jobs in their current state, without events."""

    def __init__(self, *jobs):
        self.jobs = {job.id: job for job in jobs}

    def changes(self, seen):
        known = [self.jobs[name] for name in seen if name in self.jobs]
        return [job for job in known if job.revision > seen[job.id]]

    def find(self, *_names):
        raise KeyringUnavailable("the key of this tenant cannot be used")

    def events(self, *_names, after):
        return ()

    def wait(self, _seconds, _is_closed):
        return None


class NoPreviews:
    def read(self, name):
        raise ObjectNotFound("none")


@asynccontextmanager
async def polling(reader, format_events=lambda snapshot: snapshot.job.state, is_enabled=lambda _tenant: True):
    """A watch of these jobs."""

    async def call(work, *args):
        return await asyncio.to_thread(work, *args)

    services = SimpleNamespace(
        call=call,
        reader=reader,
        store=NoPreviews(),
        forecast=NoForecast(),
        enabled=SimpleNamespace(has=is_enabled),
        settings=SimpleNamespace(watch_seconds=0.001),
    )
    watch = Watch(services, format_events)
    try:
        async with asyncio.timeout(30):
            yield watch
    finally:
        await watch.close()


ENDED = replace(RUNNING, state=JobState.COMPLETED, revision=RUNNING.revision + 1)


def test_an_unexpected_error_does_not_end_the_poller(task_failures):
    errors = [ValueError("a defect"), None]

    class FailingReader(Reader):
        def changes(self, seen):
            if error := errors.pop(0):
                raise error
            return super().changes(seen)

        def wait(self, _seconds, _is_closed):
            raise ValueError("another defect")

    async def watch_until_the_end():
        async with polling(FailingReader(ENDED)) as watch, watch.watching(RUNNING) as queue:
            return await queue.get()

    assert asyncio.run(watch_until_the_end()).is_last
    assert task_failures("event streams") >= 2


def test_a_watcher_that_has_read_the_job_before_another_one_gets_its_end():
    async def watch_after_another():
        async with polling(Reader(ENDED)) as watch, watch.watching(ENDED), watch.watching(RUNNING) as late:
            return await late.get()

    assert asyncio.run(watch_after_another()).is_last


def test_a_key_that_cannot_be_used_does_not_stop_the_events_of_other_jobs(monkeypatch):
    monkeypatch.setattr("filmgate.api.watch._REMOVAL_CHECK_SECONDS", 0.0)
    other = replace(RUNNING, id=JobId("video_" + "1" * 32))
    reader = Reader(QUEUED, other)

    async def watch_both():
        async with polling(reader) as watch, watch.watching(QUEUED), watch.watching(other) as queue:
            reader.jobs[other.id] = replace(ENDED, id=other.id)
            return await queue.get()

    assert asyncio.run(watch_both()).is_last


def test_the_end_of_a_job_that_cannot_be_formatted_is_sent_later():
    errors = [QueueUnavailable("no forecast")]

    def format_events(snapshot):
        if errors:
            raise errors.pop()
        return snapshot.job.state

    async def watch_until_the_end():
        async with polling(Reader(ENDED), format_events) as watch, watch.watching(RUNNING) as queue:
            return await queue.get()

    assert asyncio.run(watch_until_the_end()).is_last
    assert errors == []


def test_no_event_is_lost_when_the_database_fails_during_a_read():
    answers = [True, QueueUnavailable("no database"), True, True]
    other = replace(RUNNING, id=JobId("video_" + "1" * 32), tenant_id=TenantId("other"))

    def is_enabled(_tenant):
        answer = answers.pop(0) if answers else True
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def watch_both():
        reader = Reader(ENDED, replace(other, state=JobState.COMPLETED, revision=ENDED.revision))
        watching = polling(reader, is_enabled=is_enabled)
        async with watching as watch, watch.watching(RUNNING) as one, watch.watching(other) as two:
            return await one.get(), await two.get()

    assert all(event.is_last for event in asyncio.run(watch_both()))


def test_a_slow_store_delays_previews_and_not_the_events(monkeypatch):
    monkeypatch.setattr("filmgate.api.watch._MAX_PREVIEW_SECONDS", 0.1)
    reads = []

    def read_slowly(_self, name):
        reads.append(name)
        time.sleep(0.06)
        raise ObjectNotFound("none")

    async def watch_many():
        jobs = [replace(RUNNING, id=JobId(f"video_{number:032x}")) for number in range(20)]
        ended = Reader(*(replace(ENDED, id=job.id) for job in jobs))
        async with polling(ended) as watch, AsyncExitStack() as stack:
            queues = [await stack.enter_async_context(watch.watching(job)) for job in jobs]
            return [await queue.get() for queue in queues]

    monkeypatch.setattr(NoPreviews, "read", read_slowly)
    assert all(event.is_last for event in asyncio.run(watch_many()))
    assert len(reads) <= 2


def test_a_removed_job_is_noticed(monkeypatch):
    monkeypatch.setattr("filmgate.api.watch._REMOVAL_CHECK_SECONDS", 0.0)
    reader = Reader(QUEUED)

    async def watch_and_remove():
        async with polling(reader) as watch, watch.watching(QUEUED) as queue:
            reader.jobs.clear()
            return await queue.get()

    assert asyncio.run(watch_and_remove()).is_last
