"""Clips, thumbnails and sprite sheets: whole, in ranges, or by a signed link."""

import hashlib
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from filmgate.api.auth import Reader, actor_of
from filmgate.api.openapi import PROBLEMS, file_responses
from filmgate.api.problems import problem_response
from filmgate.api.ranges import ByteRange, Unsatisfiable, has_current, parse_range
from filmgate.api.schemas import to_job_id
from filmgate.api.services import Services, services_of
from filmgate.api.streams import BlockingChunks, HeldStream
from filmgate.api.videos import VideoId
from filmgate.audit.records import Action, Actor, Entry
from filmgate.errors import ClipMissing, JobActive, ObjectNotFound
from filmgate.jobs import Job, JobState
from filmgate.store.base import ObjectName, media_type_of
from filmgate.store.local.links import invalid_link
from filmgate.telemetry.trace_context import current_trace, trace_of
from filmgate.telemetry.tracing import ended

router = APIRouter(tags=["content"], responses=PROBLEMS)

Variant = Literal["video", "thumbnail", "spritesheet"]
_RESPONSES = file_responses("The bytes.", "video/mp4", "image/jpeg")
_REDIRECT: dict[int | str, dict[str, str]] = {302: {"description": "A signed link to the bytes."}}


@dataclass(frozen=True, slots=True)
class Asset:
    """A stored object and its HTTP metadata."""

    name: ObjectName
    media_type: str
    size_bytes: int
    etag: str


@router.get("/v1/videos/{video_id}/content", response_class=Response, responses=_RESPONSES | _REDIRECT)
async def download_content(
    request: Request, video_id: VideoId, caller: Reader, variant: Variant = "video"
) -> Response:
    """The finished clip, its thumbnail or its sprite sheet. Supports ranges and HEAD."""
    services = services_of(request)

    def find() -> tuple[Job, Asset]:
        job = services.reader.find(caller.id, to_job_id(video_id), has_prompt=False)
        return job, asset_of(services, job, variant)

    job, asset = await services.call_store(caller.id, find)
    # A link is presigned for GET only, and issuing one is in the audit log.
    if services.settings.content == "redirect" and request.method == "GET":
        link = await services.call_for_write(caller.id, _link, services, job, asset, actor_of(request))
        return RedirectResponse(link, 302, headers={"Cache-Control": "no-store"})
    return await serve(services, request, asset)


def _link(services: Services, job: Job, asset: Asset, actor: Actor) -> str:
    """A signed link. It is in the audit log, because reads through it may never reach this server.

    Its span ends the trace of the job and links to the request for it.
    """
    request_trace = current_trace()
    links = (request_trace,) if request_trace is not None else ()
    with ended(services.tracer.start("link", trace_of(job), links=links)) as span:
        span.set(job_id=job.id, tenant_id=job.tenant_id, size_bytes=asset.size_bytes)
        link = services.store.link(asset.name, services.link_seconds)
        details = {"part": asset.name.part, "seconds": services.link_seconds}
        services.audit.record(job.tenant_id, Entry(Action.LINKED, job.id, actor, details=details))
        return link


router.head("/v1/videos/{video_id}/content", include_in_schema=False)(download_content)


@router.get("/objects/{token}", response_class=Response, responses=_RESPONSES)
async def download_object(request: Request, token: str) -> Response:
    """The object of a signed link, until the link expires. Needs no API key."""
    services = services_of(request)

    def resolve() -> ObjectName:
        name = services.store.resolve(token)
        if not services.enabled.is_enabled(name.tenant_id):
            raise invalid_link()
        return name

    name = await services.call(resolve)
    media_type = media_type_of(name.part)
    asset = await services.call_store(name.tenant_id, _asset, services, name, media_type)
    return await serve(services, request, asset)


router.head("/objects/{token}", include_in_schema=False)(download_object)


def asset_of(services: Services, job: Job, variant: Variant) -> Asset:
    """The stored object of a variant. Raises JobActive and ClipMissing."""
    if not job.state.is_final:
        raise JobActive("the video is not finished; wait for the status completed", option="video_id")
    if job.state is JobState.FAILED or job.clip is None:
        raise ClipMissing("the video has failed and has no clip", option="video_id")
    clip = job.clip
    part = {"video": clip.part, "thumbnail": clip.thumbnail, "spritesheet": clip.spritesheet}[variant]
    if part is None:
        raise ClipMissing(f"this video has no {variant}", option="variant")
    media_type = clip.media_type if variant == "video" else media_type_of(part)
    return _asset(services, ObjectName(job.tenant_id, job.id, part), media_type)


async def serve(services: Services, request: Request, asset: Asset) -> Response:
    """The asset, or the requested range of it."""
    headers = {
        "Accept-Ranges": "bytes",
        "ETag": asset.etag,
        "Cache-Control": "private, no-transform",
        "X-Content-Type-Options": "nosniff",
    }
    if has_current(request.headers.get("if-none-match"), asset.etag):
        return Response(status_code=304, headers=headers)
    try:
        wanted = _wanted(request, asset)
    except Unsatisfiable:
        headers["Content-Range"] = f"bytes */{asset.size_bytes}"
        message = f"the range is outside the file, which has {asset.size_bytes} bytes"
        code, kind = "range_not_satisfiable", "invalid_request_error"
        return problem_response(416, message, kind, code=code, headers=headers)
    span = wanted or ByteRange(0, asset.size_bytes, asset.size_bytes)
    headers["Content-Length"] = str(span.length)
    if wanted is not None:
        headers["Content-Range"] = span.content_range
    status = 200 if wanted is None else 206
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers, media_type=asset.media_type)
    # Open the object before the headers are sent: a missing object is a proper 404.
    name, tenant_id = asset.name, asset.name.tenant_id
    chunks = BlockingChunks(
        await services.call_store(tenant_id, services.store.read, name, span.start, span.stop)
    )
    with ExitStack() as held:
        held.callback(chunks.close)
        details = {"part": name.part, "start": span.start, "stop": span.stop, "of": asset.size_bytes}
        entry = Entry(Action.READ, name.job_id, actor_of(request), details=details)
        await services.call_for_write(tenant_id, services.audit.record, tenant_id, entry)
        pulled, kind = services.pull(tenant_id, chunks), asset.media_type
        return HeldStream(pulled, held.pop_all(), media_type=kind, headers=headers, status_code=status)


def _wanted(request: Request, asset: Asset) -> ByteRange | None:
    if_range = request.headers.get("if-range")
    if if_range is not None and if_range != asset.etag:
        return None
    return parse_range(request.headers.get("range"), asset.size_bytes)


def _asset(services: Services, name: ObjectName, media_type: str) -> Asset:
    try:
        stored = services.store.stat(name)
    except ObjectNotFound as exc:
        raise ClipMissing("this content was deleted", option="video_id") from exc
    # Objects are written once: name, size and time identify the bytes.
    etag = hashlib.sha256(f"{name} {stored.size_bytes} {stored.modified_at}".encode()).hexdigest()[:32]
    return Asset(name, media_type, stored.size_bytes, f'"{etag}"')
