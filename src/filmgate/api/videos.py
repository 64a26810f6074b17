"""The verbs of /v1/videos: create, remix, edit, extend, retrieve, list, cancel, delete."""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request, Response

from filmgate.admission.accept import Visit
from filmgate.api.auth import Maker, Reader, applicant_of
from filmgate.api.forms import Body, read_body
from filmgate.api.openapi import KEYED, PROBLEMS, form_body
from filmgate.api.schemas import (
    Asked,
    CreateVideo,
    DeletedVideo,
    EditVideo,
    ExtendVideo,
    RemixVideo,
    Video,
    VideoPage,
    clip_source,
    read_form,
)
from filmgate.api.services import Stations, stations_of
from filmgate.api.views import poll_after_ms, render, view
from filmgate.errors import FilmgateError, InvalidField, JobActive, JobNotFound, UnsupportedVerb, UsageError
from filmgate.jobs import JOB_ID_PATTERN, Idempotency, Job, JobId, SourceKind, TenantId, Ticket, TraceId
from filmgate.models.requests import VideoRequest
from filmgate.store.base import UPLOAD_PART, ObjectName
from filmgate.telemetry.logs import Log
from filmgate.tenants.base import Scope

log = Log("api")

router = APIRouter(prefix="/v1/videos", tags=["videos"], responses=PROBLEMS)

VideoId = Annotated[str, Path(description="The id of a video.", max_length=200)]
DELETE_WAIT_SECONDS = 8.0
_DELETE_POLL_SECONDS = 0.1
_KEY_CHARS = 255
_SMALL_BODY_BYTES = 64 << 10


@router.post("", response_model=Video, openapi_extra=form_body(CreateVideo, file="input_reference") | KEYED)
async def create_video(request: Request) -> Response:
    """Ask for a clip. The answer leaves when the job is on disk."""

    def read(body: Body) -> VideoRequest:
        return read_form(CreateVideo, body).to_request(body.files)

    return await _accept(request, read)


@router.post("/edits", response_model=Video, openapi_extra=form_body(EditVideo, file="video") | KEYED)
async def edit_video(request: Request) -> Response:
    """Make a clip that changes another, where the model can."""
    return await _accept(request, partial(_derive, SourceKind.EDIT, EditVideo))


@router.post("/extensions", response_model=Video, openapi_extra=form_body(ExtendVideo, file="video") | KEYED)
async def extend_video(request: Request) -> Response:
    """Make a clip that continues another, where the model can."""
    return await _accept(request, partial(_derive, SourceKind.EXTEND, ExtendVideo))


@router.post("/characters", status_code=400, openapi_extra=form_body(Asked, file="video"))
async def create_character(_caller: Maker) -> Response:
    """Known to the SDK; no model here keeps characters."""
    raise UnsupportedVerb("no model here keeps characters", option="video")


@router.get("/characters/{character_id}", status_code=404)
async def retrieve_character(
    _character_id: Annotated[str, Path(alias="character_id")], _caller: Reader
) -> Response:
    """Known to the SDK; there are none."""
    raise JobNotFound("no such character", option="character_id")


@router.get("", response_model=VideoPage)
async def list_videos(
    request: Request,
    caller: Reader,
    after: Annotated[str | None, Query(description="The last id of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
) -> Response:
    """The caller's videos by age."""
    stations = stations_of(request)

    def read() -> VideoPage:
        cursor = checked_id(after) if after is not None else None
        page = stations.book.page(caller.id, after=cursor, limit=limit, order=order)
        videos = [render(stations, job, page.positions.get(job.id)) for job in page.jobs]
        ids = [video.id for video in videos]
        first, last = (ids[0], ids[-1]) if ids else (None, None)
        return VideoPage(data=videos, first_id=first, last_id=last, has_more=page.has_more)

    return _json((await stations.call(read)).model_dump_json())


@router.get("/{video_id}", response_model=Video)
async def retrieve_video(request: Request, video_id: VideoId, caller: Reader) -> Response:
    """One video, as it is now."""
    stations = stations_of(request)

    def read() -> Video:
        return view(stations, stations.book.find(caller.id, checked_id(video_id)))

    return _answer(await stations.call(read))


@router.post("/{video_id}/remix", response_model=Video, openapi_extra=form_body(RemixVideo) | KEYED)
async def remix_video(request: Request, video_id: VideoId) -> Response:
    """Make a finished clip anew with another prompt."""

    def read(body: Body) -> VideoRequest:
        prompt = read_form(RemixVideo, body).prompt
        return VideoRequest(prompt=prompt, verb=SourceKind.REMIX, source_id=checked_id(video_id))

    return await _accept(request, read)


@router.post("/{video_id}/cancel", response_model=Video)
async def cancel_video(request: Request, video_id: VideoId, caller: Maker) -> Response:
    """Stop a video: a queued one at once, a running one within a step or a chunk. A final one stays."""
    stations = stations_of(request)

    def stop() -> Video:
        return view(stations, stations.queue.cancel(caller.id, checked_id(video_id)))

    return _answer(await stations.call(stop))


@router.delete("/{video_id}", response_model=DeletedVideo)
async def delete_video(request: Request, video_id: VideoId, caller: Maker) -> Response:
    """Remove a video and everything stored for it; one that still runs is cancelled first."""
    stations, job_id = stations_of(request), checked_id(video_id)
    job = await stations.call(stations.queue.cancel, caller.id, job_id)
    deadline = time.monotonic() + DELETE_WAIT_SECONDS
    while not job.state.is_final:
        if time.monotonic() > deadline:
            raise JobActive("the video is still stopping; delete it again in a moment")
        await asyncio.sleep(_DELETE_POLL_SECONDS)
        job = await stations.call(stations.book.find, caller.id, job_id)
    await stations.call(_remove, stations, caller.id, job_id)
    return _json(DeletedVideo(id=job_id).model_dump_json())


def checked_id(video_id: str) -> JobId:
    """An id that could be one of ours. A malformed id, an unknown one and another's answer alike."""
    if not JOB_ID_PATTERN.fullmatch(video_id):
        raise JobNotFound("no such video")
    return JobId(video_id)


def _derive(verb: SourceKind, form: type[EditVideo], body: Body) -> VideoRequest:
    asked = read_form(form, body)
    seconds = asked.seconds if isinstance(asked, ExtendVideo) else None
    source = checked_id(clip_source(verb, asked, body))
    return VideoRequest(prompt=asked.prompt, seconds=seconds, verb=verb, source_id=source)


async def _accept(request: Request, read: Callable[[Body], VideoRequest]) -> Response:
    """Read the body, then do everything that blocks in one visit to a thread.

    The caller is no dependency here: solving one costs as much as the key's look-up.
    """
    applicant, scope = applicant_of(request), Scope.GENERATE
    stations = applicant.stations
    if not _is_small(request):
        # Strangers may not make us read for long.
        await stations.call(applicant.identify, scope)
    try:
        body = await read_body(request, stations.settings.max_body_bytes)
        asked, idempotency = read(body), idempotency_of(request, body)
    except FilmgateError:
        await stations.call(applicant.identify, scope)
        raise

    def enter() -> Video:
        visit = Visit(applicant.identify(scope), idempotency, TraceId(request.state.trace_id))
        return _enqueue(stations, visit, asked)

    is_slow = asked.source_kind is SourceKind.IMAGE
    return _answer(await (stations.call_slowly(enter) if is_slow else stations.call(enter)))


def _is_small(request: Request) -> bool:
    length = request.headers.get("content-length", "")
    return length.isdecimal() and len(length) < 9 and int(length) <= _SMALL_BODY_BYTES


def _enqueue(stations: Stations, visit: Visit, asked: VideoRequest) -> Video:
    """Admit, store what was uploaded, enqueue: durable when this returns, whole or not at all."""
    twin = stations.queue.recall(visit.tenant.id, visit.idempotency)
    if twin is not None:
        return view(stations, twin)
    admitted = stations.gate.admit(visit, asked)
    ticket = admitted.ticket
    if admitted.picture is None:
        job = stations.queue.enqueue(ticket)
    else:
        name = ObjectName(ticket.tenant_id, ticket.job_id, UPLOAD_PART)
        stations.store.put(name, [admitted.picture.data])
        job = _enqueue_uploaded(stations, ticket)
    log.info(
        "job accepted", job_id=job.id, tenant_id=job.tenant_id, trace_id=job.trace_id, model=job.spec.model
    )
    place = stations.gate.quick_place(visit.tenant, job)
    return view(stations, job) if place is None else render(stations, job, place)


def _enqueue_uploaded(stations: Stations, ticket: Ticket) -> Job:
    try:
        job = stations.queue.enqueue(ticket)
    except UsageError:
        # Refused for certain. A database that went away may have accepted it: then the sweep decides.
        stations.store.delete(ticket.tenant_id, ticket.job_id)
        raise
    if job.id != ticket.job_id:
        stations.store.delete(ticket.tenant_id, ticket.job_id)
    return job


def _remove(stations: Stations, tenant_id: TenantId, job_id: JobId) -> None:
    # Objects first: a row without objects can be deleted again, objects without a row are lost to view.
    stations.store.delete(tenant_id, job_id)
    stations.queue.remove(tenant_id, job_id)


def idempotency_of(request: Request, body: Body) -> Idempotency:
    """The client's key, or the SDK's word that it asks again."""
    key = request.headers.get("idempotency-key")
    if key is not None and not (0 < len(key) <= _KEY_CHARS and key.isascii() and key.isprintable()):
        raise InvalidField("Idempotency-Key has 1 to 255 printable characters", option="Idempotency-Key")
    retries = request.headers.get("x-stainless-retry-count", "0")
    return Idempotency(body.digest, key, is_retry=retries.isdecimal() and int(retries[:9]) > 0)


def _answer(video: Video) -> Response:
    headers = {"openai-poll-after-ms": str(poll_after_ms(video))}
    return _json(video.model_dump_json(), headers)


def _json(text: str, headers: dict[str, str] | None = None) -> Response:
    return Response(text, media_type="application/json", headers=headers)
