"""GET /v1/videos/{id}/stream: the clip while it is being decoded, afterwards the finished clip."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import ExitStack, suppress
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from filmgate.api.auth import Bearer, Reader, actor_of, identify
from filmgate.api.content import asset_of, serve
from filmgate.api.openapi import PROBLEMS, file_responses
from filmgate.api.schemas import to_job_id
from filmgate.api.services import Services, services_of
from filmgate.api.streams import HeldStream
from filmgate.api.videos import VideoId
from filmgate.api.waiting import while_connected
from filmgate.api.watch import EventQueue, Watch
from filmgate.audit.records import Action, Entry
from filmgate.errors import JobActive, JobNotFound, ObjectNotFound
from filmgate.jobs import Job, JobId, JobState
from filmgate.store.base import ObjectName, live_part
from filmgate.store.local.links import invalid_link
from filmgate.tenants.base import Scope

router = APIRouter(tags=["content"], responses=PROBLEMS)

FIRST_FRAGMENT_SECONDS = 300.0
_POLL_SECONDS = 0.05
_MAX_AHEAD = 256
Ahead = asyncio.Queue[bytes | Exception | None]


class StreamLink(BaseModel):
    """A link to a stream that needs no API key, until `expires_at`."""

    object: Literal["video.stream_link"] = "video.stream_link"
    id: str
    url: str
    expires_at: int


async def viewed_job(
    request: Request,
    video_id: VideoId,
    _documented: Bearer,
    link: Annotated[str | None, Query(max_length=2000, description="The token of a stream link.")] = None,
) -> Job:
    """A dependency: the job that the caller, or the holder of a link, may stream."""
    services = services_of(request)
    if link is not None:
        return await services.call(_find_by_link, services, link, to_job_id(video_id))
    tenant = await identify(request, Scope.READ)
    return await services.call(services.reader.find, tenant.id, to_job_id(video_id), has_prompt=False)


Viewed = Annotated[Job, Depends(viewed_job)]


def _find_by_link(services: Services, token: str, job_id: JobId) -> Job:
    """The job of a link. The keyring is not called for an unknown job."""
    claim = services.stream_links.parse(token)
    try:
        job = services.reader.find(claim.tenant_id, job_id, has_prompt=False)
    except JobNotFound as exc:
        raise invalid_link() from exc
    services.stream_links.verify(claim, job_id)
    if not services.enabled.is_enabled(claim.tenant_id):
        raise invalid_link()
    return job


@router.post("/v1/videos/{video_id}/stream-link", response_model=StreamLink)
async def link_stream(request: Request, video_id: VideoId, caller: Reader) -> Response:
    """Create a link for <video src> that plays the stream without an API key until it expires."""
    services, job_id, actor = services_of(request), to_job_id(video_id), actor_of(request)

    def issue() -> StreamLink:
        job = services.reader.find(caller.id, job_id, has_prompt=False)
        issued = services.stream_links.issue(caller.id, job.id)
        details = {"part": "stream", "seconds": services.link_seconds}
        services.audit.record(caller.id, Entry(Action.LINKED, job.id, actor, details=details))
        url = f"/v1/videos/{job.id}/stream?link={issued.token}"
        return StreamLink(id=job.id, url=url, expires_at=issued.expires_at)

    link = await services.call_for_write(caller.id, issue)
    return Response(
        link.model_dump_json(), media_type="application/json", headers={"Cache-Control": "no-store"}
    )


@router.get(
    "/v1/videos/{video_id}/stream",
    response_class=StreamingResponse,
    responses=file_responses("MP4 that plays from its first fragment.", "video/mp4"),
    openapi_extra={"security": [{}]},  # or a link
)
async def stream_video(request: Request, job: Viewed) -> Response:
    """Fragmented MP4 while the clip is decoded; the finished file afterwards."""
    services, first = services_of(request), None
    with ExitStack() as held:
        if not job.state.is_final:
            held.enter_context(services.edge.streams.holding(job.tenant_id))
            watch: Watch = request.app.state.watch
            job, first = await while_connected(request, _first_fragment(services, watch, job))
        if first is None:
            asset = await services.call_store(job.tenant_id, asset_of, services, job, "video")
            return await serve(services, request, asset)
        read = Entry(Action.READ, job.id, actor_of(request), details={"part": "stream", "fence": job.fence})
        await services.call_for_write(job.tenant_id, services.audit.record, job.tenant_id, read)
        headers, fragments = {"Cache-Control": "no-store"}, _fragments(services, job, first)
        return HeldStream(fragments, held.pop_all(), headers=headers, media_type="video/mp4")


async def _fragments(services: Services, job: Job, first: bytes) -> AsyncGenerator[bytes, None]:
    """The fragments of one attempt, in order. Reads ahead of the client: fragments are deleted soon after the
    clip is published.
    """
    ahead: Ahead = asyncio.Queue(_MAX_AHEAD)
    # Not a TaskGroup: a disconnect ends this generator at a `yield`, and possibly in another task.
    reader = asyncio.create_task(_read_ahead(services, job, ahead))
    try:
        yield first
        while (fragment := await ahead.get()) is not None:
            if isinstance(fragment, Exception):
                raise fragment
            yield fragment
    finally:
        reader.cancel()
        await asyncio.wait([reader])


async def _read_ahead(services: Services, job: Job, ahead: Ahead) -> None:
    """Put all fragments after the first one, then None, or the error that ends the stream."""
    try:
        await _put_fragments(services, job, ahead)
        await ahead.put(None)
    except Exception as exc:  # noqa: BLE001 - `_fragments` raises it
        await ahead.put(exc)


async def _put_fragments(services: Services, job: Job, ahead: Ahead) -> None:
    number = 1
    while True:
        fragment = await services.call_store(job.tenant_id, _read_fragment, services, job, number)
        if fragment is not None:
            await ahead.put(fragment)
            number += 1
            continue
        current = await services.call(services.reader.find, job.tenant_id, job.id, has_prompt=False)
        if current.state is not JobState.RUNNING or current.fence != job.fence:
            break
        await asyncio.sleep(_POLL_SECONDS)
    # The last fragments may have arrived between the two reads.
    while fragment := await services.call_store(job.tenant_id, _read_fragment, services, job, number):
        await ahead.put(fragment)
        number += 1
    if current.fence != job.fence or current.clip is None or number < (current.clip.fragments or 0):
        # Close the connection abnormally: a normal end would make half a clip look complete.
        raise ConnectionAbortedError("the streamed attempt has ended")


def _read_fragment(services: Services, job: Job, number: int) -> bytes | None:
    """One fragment of the job's current attempt, None if it does not exist. Raises InvalidKey for a tenant
    that was disabled meanwhile.
    """
    services.enabled.require(job.tenant_id)
    try:
        name = ObjectName(job.tenant_id, job.id, live_part(job.fence, number))
        return b"".join(services.store.read(name))
    except ObjectNotFound:
        return None


async def _first_fragment(services: Services, watch: Watch, job: Job) -> tuple[Job, bytes | None]:
    """Wait for decoding to begin: (the job, its first fragment), or (the ended job, None)."""
    deadline = time.monotonic() + FIRST_FRAGMENT_SECONDS
    async with watch.watching(job) as changes:
        while (left := deadline - time.monotonic()) > 0:
            if job.fence:
                fragment = await services.call_store(job.tenant_id, _read_fragment, services, job, 0)
                if fragment is not None:
                    return job, fragment
            await _wait_for_change(job, changes, left)
            job = await services.call(services.reader.find, job.tenant_id, job.id, has_prompt=False)
            if job.state.is_final:
                return job, None
    raise JobActive("decoding has not started yet; try again later", option="video_id")


async def _wait_for_change(job: Job, changes: EventQueue, seconds: float) -> None:
    """All viewers of queued jobs share the queries of one poller; few jobs run at a time."""
    if job.state is JobState.RUNNING:
        await asyncio.sleep(_POLL_SECONDS)
        return
    # Not `wait_for`: before Python 3.12 it can lose the cancellation after a disconnect.
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await changes.get()
