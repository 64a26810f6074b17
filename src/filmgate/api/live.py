"""GET /v1/videos/{id}/stream: the clip while it is still being decoded, then the whole clip."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from filmgate.api.auth import Reader
from filmgate.api.content import asset_of, serve
from filmgate.api.openapi import PROBLEMS
from filmgate.api.stations import Stations, stations_of
from filmgate.api.videos import VideoId, checked_id
from filmgate.errors import JobActive, ObjectNotFound
from filmgate.jobs import Job, JobState
from filmgate.store.base import ObjectName, live_part

router = APIRouter(tags=["content"], responses=PROBLEMS)

FIRST_FRAGMENT_SECONDS = 300.0
_POLL_SECONDS = 0.05
_AHEAD = 256
_MP4 = {"video/mp4": {"schema": {"type": "string", "format": "binary"}}}


@router.get(
    "/v1/videos/{video_id}/stream",
    response_class=StreamingResponse,
    responses={200: {"description": "MP4, playable from its first fragment on.", "content": _MP4}},
)
async def stream_video(request: Request, video_id: VideoId, caller: Reader) -> Response:
    """Fragmented MP4 as the decoder yields it; the finished file once there is one."""
    stations = stations_of(request)
    job = await stations.call(stations.book.find, caller.id, checked_id(video_id))
    first = None
    if not job.state.is_final:
        job, first = await _first_fragment(stations, job)
    if first is None:
        return await serve(stations, request, await stations.call(asset_of, stations, job, "video"))
    live = LiveClip(stations, job, first)
    return StreamingResponse(live.fragments(), headers={"Cache-Control": "no-store"}, media_type="video/mp4")


@dataclass(frozen=True, slots=True)
class LiveClip:
    """The fragments of one attempt in order."""

    stations: Stations
    job: Job
    first: bytes

    async def fragments(self) -> AsyncIterator[bytes]:
        """Read ahead of the client: fragments are gone soon after the clip is published."""
        box: asyncio.Queue[bytes | None] = asyncio.Queue(_AHEAD)
        async with asyncio.TaskGroup() as group:
            reader = group.create_task(self._read_ahead(box))
            yield self.first
            while (fragment := await box.get()) is not None:
                yield fragment
            await reader

    async def _read_ahead(self, box: asyncio.Queue[bytes | None]) -> None:
        number = 1
        while True:
            fragment = await self.stations.call(read_fragment, self.stations, self.job, number)
            if fragment is not None:
                await box.put(fragment)
                number += 1
                continue
            job = await self.stations.call(self.stations.book.find, self.job.tenant_id, self.job.id)
            if job.state is not JobState.RUNNING or job.fence != self.job.fence:
                break
            await asyncio.sleep(_POLL_SECONDS)
        # One more look: the last fragments may have come between the two reads.
        while fragment := await self.stations.call(read_fragment, self.stations, self.job, number):
            await box.put(fragment)
            number += 1
        if job.state is not JobState.COMPLETED or job.fence != self.job.fence:
            # Cut the connection: an orderly end would pass half a clip off as a whole one.
            raise ConnectionAbortedError("the attempt that was being streamed has ended")
        await box.put(None)


def read_fragment(stations: Stations, job: Job, number: int) -> bytes | None:
    """One fragment of the job's current attempt, if it is there."""
    try:
        name = ObjectName(job.tenant_id, job.id, live_part(job.fence, number))
        return b"".join(stations.store.read(name))
    except ObjectNotFound:
        return None


async def _first_fragment(stations: Stations, job: Job) -> tuple[Job, bytes | None]:
    """Wait for the decoder to begin: (the job, its first fragment), or (the ended job, None)."""
    deadline = time.monotonic() + FIRST_FRAGMENT_SECONDS
    while time.monotonic() < deadline:
        fragment = await stations.call(read_fragment, stations, job, 0) if job.fence else None
        if fragment is not None:
            return job, fragment
        await asyncio.sleep(_POLL_SECONDS)
        job = await stations.call(stations.book.find, job.tenant_id, job.id)
        if job.state.is_final:
            return job, None
    raise JobActive("the video is not being decoded yet", option="video_id")
