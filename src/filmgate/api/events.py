"""GET /v1/videos/{id}/events: server-sent events of one job, with ids and replay after a reconnect.

event: status     state or stage changed; never lost, replayed from the book after Last-Event-ID
event: progress   more of the current stage is finished, or the place in the queue has moved
event: preview    a frame of the clip as it is now, as a data URL
"""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass

from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse

from filmgate.api.auth import Reader
from filmgate.api.openapi import PROBLEMS
from filmgate.api.stations import Stations, stations_of
from filmgate.api.videos import VideoId, checked_id
from filmgate.api.views import render
from filmgate.api.watching import Sight, Watch
from filmgate.jobs import Job, JobState
from filmgate.queue.base import JobEvent

router = APIRouter(tags=["videos"], responses=PROBLEMS)

KEEP_ALIVE_SECONDS = 15.0
_STREAM = {"text/event-stream": {"schema": {"type": "string"}}}


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
    missed: Iterable[JobEvent] = ()
    if (last := _last_event_id(request)) is not None:
        missed = await stations.call(stations.book.events, caller.id, job.id, after=last)
    follower = Follower(stations, watch, job, tuple(missed))
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(follower.events(), headers=headers, media_type="text/event-stream")


@dataclass(frozen=True, slots=True)
class Follower:
    """One client's stream of one job."""

    stations: Stations
    watch: Watch
    job: Job
    missed: tuple[JobEvent, ...]

    async def events(self) -> AsyncIterator[str]:
        async with self.watch.watching(self.job) as box:
            for event in self.missed:
                yield _replay(event)
            position = None
            if self.job.state is JobState.QUEUED:
                place = self.stations.book.position
                position = await self.stations.call(place, self.job.tenant_id, self.job.id)
            yield self._message("status", Sight(self.job, position))
            is_final = self.job.state.is_final
            while not is_final:
                sight = await _next(box)
                if sight is None:
                    yield ": still here\n\n"
                    continue
                for message in self._tell(sight):
                    yield message
                is_final = sight.is_gone or sight.job.state.is_final

    def _tell(self, sight: Sight) -> Iterable[str]:
        if sight.is_gone:
            yield _message("gone", {"id": sight.job.id})
            return
        # The newest of the events is told by the job itself.
        for event in sight.events[:-1]:
            yield _replay(event)
        is_change = bool(sight.events)
        yield self._message("status" if is_change else "progress", sight)
        if sight.preview is not None:
            picture = base64.b64encode(sight.preview).decode()
            yield _message("preview", {"image": f"data:image/jpeg;base64,{picture}"})

    def _message(self, name: str, sight: Sight) -> str:
        video = render(self.stations, sight.job, sight.position)
        data = video.model_dump(mode="json", exclude={"prompt", "screening"})
        return _message(name, data | {"attempt": sight.job.attempt}, sight.job.revision)


async def _next(box: asyncio.Queue[Sight]) -> Sight | None:
    try:
        return await asyncio.wait_for(box.get(), KEEP_ALIVE_SECONDS)
    except TimeoutError:
        return None


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
