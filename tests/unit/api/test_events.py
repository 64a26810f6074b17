"""Server-sent events contain the listed fields and no others."""

import json
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest

from filmgate.api import events
from filmgate.api.events import EVENT_FIELDS, format_events
from filmgate.api.schemas import Video
from filmgate.api.watch import Snapshot
from filmgate.jobs import Job, JobState, Progress, Stage, WorkerId
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
    def slot(self, _job):
        return None

    def eta_seconds(self, _job, _now):
        return 3.0


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
