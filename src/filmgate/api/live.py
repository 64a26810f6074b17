"""GET /v1/videos/{id}/stream: the clip while it is still being decoded, then the whole clip."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import StreamingResponse

from filmgate.api.auth import Bearer, Reader, applicant_of
from filmgate.api.content import asset_of, serve
from filmgate.api.openapi import PROBLEMS
from filmgate.api.schemas import StreamLink
from filmgate.api.services import Stations, stations_of
from filmgate.api.videos import VideoId, checked_id
from filmgate.errors import JobActive, JobNotFound, LinkInvalid, ObjectNotFound, TenantNotFound
from filmgate.jobs import Job, JobId, JobState
from filmgate.store.base import ObjectName, live_part
from filmgate.tenants.base import Scope

router = APIRouter(tags=["content"], responses=PROBLEMS)

FIRST_FRAGMENT_SECONDS = 300.0
_POLL_SECONDS = 0.05
_AHEAD = 256
_MP4 = {"video/mp4": {"schema": {"type": "string", "format": "binary"}}}


async def viewed_job(
    request: Request,
    video_id: VideoId,
    _documented: Bearer,
    link: Annotated[str | None, Query(max_length=2000, description="A pass of .../stream-link.")] = None,
) -> Job:
    """A dependency: the job whose stream this caller, or whoever holds this link, may see."""
    applicant = applicant_of(request)
    stations, job_id = applicant.stations, checked_id(video_id)

    def find() -> Job:
        if link is not None:
            return _find_by_pass(stations, link, job_id)
        return stations.book.find(applicant.identify(Scope.READ).id, job_id)

    return await stations.call(find)


Viewed = Annotated[Job, Depends(viewed_job)]


def _find_by_pass(stations: Stations, token: str, job_id: JobId) -> Job:
    """The job of a pass. Who knows no job of this tenant cannot make us ask the keyring."""
    claim = stations.passes.read(token)
    try:
        job = stations.book.find(claim.tenant_id, job_id)
        is_enabled = stations.tenants.find(claim.tenant_id).is_enabled
    except (JobNotFound, TenantNotFound) as exc:
        raise LinkInvalid("this link is not valid") from exc
    stations.passes.check(claim, job_id)
    if not is_enabled:
        raise LinkInvalid("this link is not valid")
    return job


@router.post("/v1/videos/{video_id}/stream-link", response_model=StreamLink)
async def link_stream(request: Request, video_id: VideoId, caller: Reader) -> Response:
    """A link for <video src>: it plays this video's stream without a key, and expires."""
    stations, job_id = stations_of(request), checked_id(video_id)

    def issue() -> StreamLink:
        job = stations.book.find(caller.id, job_id)
        issued = stations.passes.issue(caller.id, job.id)
        url = f"/v1/videos/{job.id}/stream?link={issued.token}"
        return StreamLink(id=job.id, url=url, expires_at=issued.expires_at)

    link = await stations.call(issue)
    return Response(
        link.model_dump_json(), media_type="application/json", headers={"Cache-Control": "no-store"}
    )


@router.get(
    "/v1/videos/{video_id}/stream",
    response_class=StreamingResponse,
    responses={200: {"description": "MP4, playable from its first fragment on.", "content": _MP4}},
)
async def stream_video(request: Request, job: Viewed) -> Response:
    """Fragmented MP4 as the decoder yields it; the finished file once there is one."""
    stations, first = stations_of(request), None
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
        if job.fence != self.job.fence or job.clip is None or number < (job.clip.fragments or 0):
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
