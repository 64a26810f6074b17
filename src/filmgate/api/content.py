"""Clips, thumbnails and sprite sheets: whole, in ranges, or by a signed link."""

import hashlib
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from filmgate.api.auth import Reader, actor_of
from filmgate.api.openapi import PROBLEMS
from filmgate.api.problems import body
from filmgate.api.ranges import ByteRange, Unsatisfiable, parse_range
from filmgate.api.schemas import to_job_id
from filmgate.api.services import Services, services_of
from filmgate.api.streams import BlockingChunks, HeldStream
from filmgate.api.videos import VideoId
from filmgate.audit.records import Action, Actor, Entry
from filmgate.errors import ClipMissing, JobActive, LinkInvalid, ObjectNotFound
from filmgate.jobs import Job, JobState, TenantId
from filmgate.store.base import Chunks, ObjectName
from filmgate.telemetry.trace_context import current_trace, trace_of

router = APIRouter(tags=["content"], responses=PROBLEMS)

Variant = Literal["video", "thumbnail", "spritesheet"]
_BINARY = {"schema": {"type": "string", "format": "binary"}}
_RESPONSES: dict[int | str, dict[str, object]] = {
    200: {"description": "The bytes.", "content": {"video/mp4": _BINARY, "image/jpeg": _BINARY}},
    206: {"description": "The requested range.", "content": {"video/mp4": _BINARY}},
    302: {"description": "A signed link to the bytes."},
    304: {"description": "Not modified."},
}
_PICTURE_TYPES = {".jpg": "image/jpeg", ".png": "image/png", ".webp": "image/webp"}


@dataclass(frozen=True, slots=True)
class Asset:
    """A stored object and its HTTP metadata."""

    name: ObjectName
    media_type: str
    size_bytes: int
    etag: str


@router.get("/v1/videos/{video_id}/content", response_class=Response, responses=_RESPONSES)
async def download_content(
    request: Request, video_id: VideoId, caller: Reader, variant: Variant = "video"
) -> Response:
    """The finished clip, its thumbnail or its sprite sheet. Supports ranges and HEAD."""
    services = services_of(request)

    def find() -> tuple[Job, Asset]:
        job = services.reader.find(caller.id, to_job_id(video_id))
        return job, asset_of(services, job, variant)

    job, asset = await services.call(find)
    if services.settings.content == "redirect":
        link = await services.call_writing(caller.id, _link, services, job, asset, actor_of(request))
        return RedirectResponse(link, 302, headers={"Cache-Control": "no-store"})
    return await serve(services, request, asset)


def _link(services: Services, job: Job, asset: Asset, actor: Actor) -> str:
    """A signed link. It is in the audit log, because reads through it may never reach this server.

    Its span ends the trace of the job and links to the request for it.
    """
    asked = current_trace()
    span = services.tracer.start("link", trace_of(job), links=(asked,) if asked is not None else ())
    span.set(job_id=job.id, tenant_id=job.tenant_id, size_bytes=asset.size_bytes)
    link = services.store.link(asset.name, services.link_seconds)
    details = {"part": asset.name.part, "seconds": services.link_seconds}
    services.audit.record(job.tenant_id, Entry(Action.LINKED, job.id, actor, details=details))
    span.end()
    return link


router.head("/v1/videos/{video_id}/content", include_in_schema=False)(download_content)


@router.get("/objects/{token}", response_class=Response, responses=_RESPONSES)
async def download_object(request: Request, token: str) -> Response:
    """The object of a signed link, until the link expires. Needs no API key."""
    services = services_of(request)

    def find() -> Asset:
        name = services.store.resolve(token)
        if not services.enabled.is_enabled(name.tenant_id):
            raise LinkInvalid("this link is not valid")
        return _asset(services, name, _media_type(name.part))

    return await serve(services, request, await services.call(find))


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
    media_type = clip.media_type if variant == "video" else _media_type(part)
    return _asset(services, ObjectName(job.tenant_id, job.id, part), media_type)


async def serve(services: Services, request: Request, asset: Asset) -> Response:
    """The asset, or the requested range of it."""
    headers = {
        "Accept-Ranges": "bytes",
        "ETag": asset.etag,
        "Cache-Control": "private, no-transform",
        "X-Content-Type-Options": "nosniff",
    }
    if request.headers.get("if-none-match") == asset.etag:
        return Response(status_code=304, headers=headers)
    try:
        wanted = _wanted(request, asset)
    except Unsatisfiable:
        headers["Content-Range"] = f"bytes */{asset.size_bytes}"
        return body(
            416, "the range is outside the file", "invalid_request_error", code="range", headers=headers
        )
    span = wanted or ByteRange(0, asset.size_bytes, asset.size_bytes)
    headers["Content-Length"] = str(span.length)
    if wanted is not None:
        headers["Content-Range"] = span.content_range
    status = 200 if wanted is None else 206
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers, media_type=asset.media_type)
    # Open the object before the headers are sent: a missing object is a proper 404.
    actor, tenant_id = actor_of(request), asset.name.tenant_id
    chunks = await services.call_writing(tenant_id, _open_recorded, services, asset, span, actor)
    served, held = BlockingChunks(_while_enabled(services, tenant_id, chunks)), ExitStack()
    held.callback(served.close)
    return HeldStream(
        services.pull(served), held, media_type=asset.media_type, headers=headers, status_code=status
    )


def _while_enabled(services: Services, tenant_id: TenantId, chunks: Chunks) -> Chunks:
    """The chunks, until the tenant is disabled. Then raises InvalidKey, which closes the connection."""
    with closing(chunks):
        for chunk in chunks:
            services.enabled.require(tenant_id)
            yield chunk


def _open_recorded(services: Services, asset: Asset, span: ByteRange, actor: Actor) -> Chunks:
    """The bytes of the range. The read is in the audit log before the first byte leaves."""
    name = asset.name
    chunks = services.store.read(name, span.start, span.stop)
    details = {"part": name.part, "start": span.start, "stop": span.stop, "of": asset.size_bytes}
    services.audit.record(name.tenant_id, Entry(Action.READ, name.job_id, actor, details=details))
    return chunks


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


def _media_type(part: str) -> str:
    return _PICTURE_TYPES.get(PurePosixPath(part).suffix, "video/mp4")
