"""Clips, thumbnails and spritesheets: whole, in ranges, or by a signed link that needs no key."""

import hashlib
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse, StreamingResponse

from filmgate.api.auth import Reader
from filmgate.api.openapi import PROBLEMS
from filmgate.api.problems import body
from filmgate.api.ranges import ByteRange, Unsatisfiable, parse_range
from filmgate.api.services import Stations, stations_of
from filmgate.api.videos import VideoId, checked_id
from filmgate.errors import ClipMissing, JobActive, ObjectNotFound
from filmgate.jobs import Job, JobState
from filmgate.store.base import ObjectName

router = APIRouter(tags=["content"], responses=PROBLEMS)

Variant = Literal["video", "thumbnail", "spritesheet"]
_BINARY = {"schema": {"type": "string", "format": "binary"}}
_ANSWERS: dict[int | str, dict[str, object]] = {
    200: {"description": "The bytes.", "content": {"video/mp4": _BINARY, "image/jpeg": _BINARY}},
    206: {"description": "The range that was asked for.", "content": {"video/mp4": _BINARY}},
    302: {"description": "A signed link to the bytes."},
    304: {"description": "The client has it already."},
}
_PICTURE_TYPES = {".jpg": "image/jpeg", ".png": "image/png", ".webp": "image/webp"}


@dataclass(frozen=True, slots=True)
class Asset:
    """One stored object and how it is announced."""

    name: ObjectName
    media_type: str
    size_bytes: int
    etag: str


@router.get("/v1/videos/{video_id}/content", response_class=Response, responses=_ANSWERS)
async def download_content(
    request: Request, video_id: VideoId, caller: Reader, variant: Variant = "video"
) -> Response:
    """The finished clip, its thumbnail or its spritesheet. Ranges and HEAD are understood."""
    stations = stations_of(request)

    def find() -> Asset:
        return asset_of(stations, stations.book.find(caller.id, checked_id(video_id)), variant)

    asset = await stations.call(find)
    if stations.settings.content == "redirect":
        link = await stations.call(stations.store.link, asset.name, stations.link_seconds)
        return RedirectResponse(link, 302, headers={"Cache-Control": "no-store"})
    return await serve(stations, request, asset)


router.head("/v1/videos/{video_id}/content", include_in_schema=False)(download_content)


@router.get("/objects/{token}", response_class=Response, responses=_ANSWERS)
async def download_object(request: Request, token: str) -> Response:
    """What a signed link names: one object, until it expires, without a key."""
    stations = stations_of(request)

    def find() -> Asset:
        name = stations.store.resolve(token)
        return _asset(stations, name, _media_type(name.part))

    return await serve(stations, request, await stations.call(find))


router.head("/objects/{token}", include_in_schema=False)(download_object)


def asset_of(stations: Stations, job: Job, variant: Variant) -> Asset:
    """The stored object of a variant. Raises JobActive before the end, ClipMissing after a bad one."""
    if not job.state.is_final:
        raise JobActive("the video is not finished; its status says when it is", option="video_id")
    if job.state is JobState.FAILED or job.clip is None:
        raise ClipMissing("the video has failed: it has no clip", option="video_id")
    clip = job.clip
    part = {"video": clip.part, "thumbnail": clip.thumbnail, "spritesheet": clip.spritesheet}[variant]
    if part is None:
        raise ClipMissing(f"this video has no {variant}", option="variant")
    media_type = clip.media_type if variant == "video" else _media_type(part)
    return _asset(stations, ObjectName(job.tenant_id, job.id, part), media_type)


async def serve(stations: Stations, request: Request, asset: Asset) -> Response:
    """The asset, or the part of it that the request wants."""
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
        return body(416, "no byte is in this range", "invalid_request_error", code="range", headers=headers)
    span = wanted or ByteRange(0, asset.size_bytes, asset.size_bytes)
    headers["Content-Length"] = str(span.length)
    if wanted is not None:
        headers["Content-Range"] = span.content_range
    status = 200 if wanted is None else 206
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers, media_type=asset.media_type)
    # The first read happens before the first header leaves: a missing object is still a clean 404.
    chunks = await stations.call(stations.store.read, asset.name, span.start, span.stop)
    return StreamingResponse(stations.pull(chunks), status, headers, asset.media_type)


def _wanted(request: Request, asset: Asset) -> ByteRange | None:
    if_range = request.headers.get("if-range")
    if if_range is not None and if_range != asset.etag:
        return None
    return parse_range(request.headers.get("range"), asset.size_bytes)


def _asset(stations: Stations, name: ObjectName, media_type: str) -> Asset:
    try:
        stored = stations.store.stat(name)
    except ObjectNotFound as exc:
        raise ClipMissing("this content is gone", option="video_id") from exc
    # Objects are written once: the name of an attempt's part names its bytes.
    etag = hashlib.sha256(f"{name} {stored.size_bytes} {stored.modified_at}".encode()).hexdigest()[:32]
    return Asset(name, media_type, stored.size_bytes, f'"{etag}"')


def _media_type(part: str) -> str:
    return _PICTURE_TYPES.get(PurePosixPath(part).suffix, "video/mp4")
