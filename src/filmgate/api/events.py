"""GET /v1/videos/{id}/events: server-sent events of one job, with ids and replay after a reconnect.

event: status     state or stage changed; never lost, replayed from the book after Last-Event-ID
event: progress   more of the current stage is finished, or the place in the queue has moved
event: preview    a frame of the clip as it is now, as a data URL
"""

import asyncio
import base64
import json
from collections.abc import AsyncIterator

from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse

from filmgate.api.auth import Reader
from filmgate.api.openapi import PROBLEMS
from filmgate.api.services import Stations, stations_of
from filmgate.api.videos import VideoId, checked_id
from filmgate.api.views import render
from filmgate.api.watch import Sight, Watch
from filmgate.jobs import Job, JobState
from filmgate.scheduling.base import JobEvent

router = APIRouter(tags=["videos"], responses=PROBLEMS)

KEEP_ALIVE_SECONDS = 15.0
_STREAM: dict[str, dict[str, str]] = {"text/event-stream": {}}


@router.get(
    "/v1/videos/{video_id}/events",
    response_class=StreamingResponse,
    responses={200: {"description": "The events of a job until its end.", "content": _STREAM}},
)
async def watch_video(request: Request, video_id: VideoId, caller: Reader) -> StreamingResponse:
    """Follow a job until its end. A client that reconnects with Last-Event-ID misses no change of state."""
    stations = stations_of(request)
    watch: Watch = request.app.state.watch
    job = await stations.call(stations.book.find, caller.id, checked_id(video_id))
    last = _last_event_id(request)
    opening = await stations.call(_opening, stations, job, last)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    events = _follow(watch, job, opening)
    return StreamingResponse(events, headers=headers, media_type="text/event-stream")


def _opening(stations: Stations, job: Job, last: int | None) -> str:
    """What a client must know first: the changes it has missed, then the job as it is."""
    missed = stations.book.events(job.tenant_id, job.id, after=last) if last is not None else ()
    replay = "".join(_replay(event) for event in missed if event.revision <= job.revision)
    position = stations.book.position(job.tenant_id, job.id) if job.state is JobState.QUEUED else None
    return replay + _state("status", stations, Sight(job, position))


async def _follow(watch: Watch, job: Job, opening: str) -> AsyncIterator[str]:
    async with watch.watching(job) as box:
        yield opening
        is_over = job.state.is_final
        while not is_over:
            try:
                news = await asyncio.wait_for(box.get(), KEEP_ALIVE_SECONDS)
            except TimeoutError:
                yield ": still here\n\n"
                continue
            yield news.text
            is_over = news.is_last


def narrate(stations: Stations, sight: Sight) -> str:
    """A sight as events, the newest change told by the job itself."""
    if sight.is_gone:
        return _message("gone", {"id": sight.job.id})
    text = "".join(_replay(event) for event in sight.events[:-1])
    text += _state("status" if sight.events else "progress", stations, sight)
    if sight.preview is not None:
        picture = base64.b64encode(sight.preview).decode()
        text += _message("preview", {"image": f"data:image/jpeg;base64,{picture}"})
    return text


def _state(name: str, stations: Stations, sight: Sight) -> str:
    video = render(stations, sight.job, sight.position)
    data = video.model_dump(mode="json", exclude={"prompt", "screening"})
    return _message(name, data | {"attempt": sight.job.attempt}, sight.job.revision)


def _replay(event: JobEvent) -> str:
    status = "in_progress" if event.state is JobState.RUNNING and event.stage else None
    data = {
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
