"""GET /v1/videos/{id}/events: server-sent events of one job, with ids and replay after a reconnect.

event: status     state or stage changed; never skipped, replayed after Last-Event-ID
event: progress   work within a stage was finished, or the queue position changed
event: preview    a frame of the clip so far, as a data URL
event: gone       the video was deleted, or its tenant was disabled
"""

import asyncio
import base64
import json
import time
from collections.abc import AsyncGenerator
from contextlib import ExitStack

from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse

from filmgate.api.auth import Reader
from filmgate.api.openapi import PROBLEMS, header
from filmgate.api.schemas import Video, to_job_id
from filmgate.api.services import Services, services_of
from filmgate.api.streams import HeldStream
from filmgate.api.videos import VideoId
from filmgate.api.watch import Snapshot, Watch
from filmgate.jobs import Job, JobState
from filmgate.scheduling.records import JobEvent

router = APIRouter(tags=["videos"], responses=PROBLEMS)

KEEP_ALIVE_SECONDS = 15.0
_STREAM: dict[str, dict[str, str]] = {"text/event-stream": {}}
# The fields of the video object that events contain. A new field is not shown unless it is listed here.
EVENT_FIELDS = {
    "id", "object", "model", "status", "progress", "created_at", "completed_at", "expires_at",
    "remixed_from_video_id", "seconds", "size", "error", "stage", "eta_seconds", "queue_position", "cost",
    "trace_id", "route", "rendered_size", "quality",
}  # fmt: skip


@router.get(
    "/v1/videos/{video_id}/events",
    response_class=StreamingResponse,
    responses={200: {"description": "The events of a job until its end.", "content": _STREAM}},
    openapi_extra=header("Last-Event-ID", "The id of the last event that arrived.", r"^\d{1,18}$"),
)
async def watch_video(request: Request, video_id: VideoId, caller: Reader) -> StreamingResponse:
    """Follow a job until its end. A client that reconnects with Last-Event-ID misses no change of state."""
    services = services_of(request)
    watch: Watch = request.app.state.watch
    job = await services.call(services.reader.find, caller.id, to_job_id(video_id), has_prompt=False)
    opening = await services.call(_opening, services, job, _last_event_id(request))
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    held = ExitStack()
    held.enter_context(services.edge.watchers.holding(caller.id))
    return HeldStream(_follow(watch, job, opening), held, headers=headers, media_type="text/event-stream")


def _opening(services: Services, job: Job, last: int | None) -> str:
    """The events the client missed, then the current state."""
    missed = services.reader.events(job.tenant_id, job.id, after=last) if last is not None else ()
    replay = "".join(_replay(event, job) for event in missed if event.revision <= job.revision)
    return replay + _state("status", services, job)


async def _follow(watch: Watch, job: Job, opening: str) -> AsyncGenerator[str, None]:
    async with watch.watching(job) as queue:
        yield opening
        is_over = job.state.is_final
        while not is_over:
            try:
                # Not `wait_for`: before Python 3.12 it can lose the cancellation after a disconnect.
                async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                    event = await queue.get()
            except TimeoutError:
                yield ": keep-alive\n\n"
                continue
            yield event.text
            is_over = event.is_last


def format_events(services: Services, snapshot: Snapshot) -> str:
    """A snapshot as server-sent events."""
    if snapshot.is_removed:
        return _message("gone", {"id": snapshot.job.id})
    text = "".join(_replay(event, snapshot.job) for event in snapshot.events[:-1])
    text += _state("status" if snapshot.events else "progress", services, snapshot.job)
    if snapshot.preview is not None:
        picture = base64.b64encode(snapshot.preview).decode()
        text += _message("preview", {"image": f"data:image/jpeg;base64,{picture}"})
    return text


def _state(name: str, services: Services, job: Job) -> str:
    data = Video.of(services, job).model_dump(mode="json", include=EVENT_FIELDS)
    now = {"attempt": job.attempt, "reason": None, "at": round(time.time(), 3), "is_replay": False}
    return _message(name, data | now, job.revision)


def _replay(event: JobEvent, job: Job) -> str:
    """A past event with the same keys as a current one; what is not known of that moment is null."""
    status = "in_progress" if event.state is JobState.RUNNING and event.stage else None
    data: dict[str, object] = dict.fromkeys(sorted(EVENT_FIELDS))
    data |= {
        "id": job.id,
        "object": "video",
        "model": job.spec.model,
        "trace_id": job.trace_id,
        "status": status or ("queued" if event.state is JobState.RUNNING else event.state.value),
        "stage": event.stage,
        "attempt": event.attempt,
        "reason": event.reason,
        "at": round(event.at, 3),
        "is_replay": True,
    }
    return _message("status", data, event.revision)


def _message(name: str, data: object, revision: int | None = None) -> str:
    head = f"id: {revision}\n" if revision is not None else ""
    return f"{head}event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n"


def _last_event_id(request: Request) -> int | None:
    last = request.headers.get("last-event-id", "")
    return int(last) if last.isdecimal() and len(last) < 19 else None
