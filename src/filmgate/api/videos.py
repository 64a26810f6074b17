"""The methods of /v1/videos: create, estimate, remix, edit, extend, retrieve, list, cancel, delete."""

import asyncio
import time
from contextlib import nullcontext
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response

from filmgate.admission.accept import RequestContext
from filmgate.api.auth import Creator, Reader, actor_of
from filmgate.api.forms import Body, Form, parse_form, read_form, reading
from filmgate.api.openapi import PROBLEMS, form_body, header, links
from filmgate.api.schemas import (
    CreateVideo,
    DeletedVideo,
    DigestPrompt,
    EditVideo,
    ExtendVideo,
    ImageReference,
    PromptDigest,
    RemixVideo,
    Video,
    VideoEstimate,
    VideoPage,
    clip_fields,
    rounded,
    to_job_id,
)
from filmgate.api.services import services_of
from filmgate.api.video_filter import NO_FILTER, VideoFilter
from filmgate.api.waiting import MAX_WAIT_SECONDS, call_slow_work, parse_wait, wait_for_end
from filmgate.errors import InvalidField, JobActive, JobNotFound, UnsupportedOperation
from filmgate.jobs import Idempotency, Size, SourceKind, TraceId
from filmgate.models.requests import VideoRequest
from filmgate.tenants.base import Tenant

router = APIRouter(prefix="/v1/videos", tags=["videos"], responses=PROBLEMS)

VideoId = Annotated[str, Path(description="The id of a video.", max_length=200)]
Prefer = Annotated[
    str | None,
    Header(
        max_length=200,
        description="`wait=SECONDS`: respond when the video is finished, or after this many seconds, at most "
        f"{MAX_WAIT_SECONDS}. `Preference-Applied` in the response says that the server waited.",
    ),
]
_IDEMPOTENCY = header(
    "Idempotency-Key",
    "Of your choice, up to 255 characters: a repeated request with the same key is the same job.",
    "^[!-~]{1,255}$",
)
DELETE_WAIT_SECONDS = 8.0
_LINKS = links(
    200,
    "video_id",
    retrieve="GET /v1/videos/{video_id}",
    content="GET /v1/videos/{video_id}/content",
    remix="POST /v1/videos/{video_id}/remix",
    cancel="POST /v1/videos/{video_id}/cancel",
    delete="DELETE /v1/videos/{video_id}",
)
_DELETE_POLL_SECONDS = 0.1
_POLLS_PER_JOB = 20
_POLL_MS = (250, 10_000)
_UNKNOWN_ETA_SECONDS = 20.0  # polled once per second, as without the header
_MAX_KEY_CHARS = 255
_UNKNOWN_CURSOR = "no such video to continue after; list again without `after`"


@router.post(
    "",
    response_model=Video,
    responses=_LINKS,
    openapi_extra=form_body(CreateVideo, file="input_reference") | _IDEMPOTENCY,
)
async def create_video(request: Request, caller: Creator) -> Response:
    """Create a video. The response is sent when the job is durable."""
    async with reading(request, caller) as body:
        return await _accept(request, caller, body, to_request(body))


@router.post("/estimate", openapi_extra=form_body(CreateVideo, file="input_reference"))
async def estimate_video(request: Request, caller: Creator) -> VideoEstimate:
    """Estimate cost and time of a video without creating it. Rejects what create would reject."""
    services = services_of(request)
    async with reading(request, caller) as body:
        trace_id, wanted = TraceId(request.state.trace_id), to_request(body)
        context = RequestContext(caller, Idempotency(body.digest), trace_id, actor_of(request))

        def estimate() -> VideoEstimate:
            found = services.admission.estimate(context, wanted)
            return VideoEstimate(
                **clip_fields(services, found.ticket),
                queue_position=found.queue_position,
                starts_in_seconds=rounded(found.starts_in_seconds),
                ready_in_seconds=rounded(found.ready_in_seconds),
                slo_seconds=found.ticket.slo_seconds,
            )

        # A rejected prompt is written to the audit log.
        return await services.call_for_write(caller.id, estimate)


@router.post("/edits", response_model=Video, openapi_extra=form_body(EditVideo, file="video") | _IDEMPOTENCY)
async def edit_video(request: Request, caller: Creator) -> Response:
    """Create a video that changes another, if the model supports it."""
    async with reading(request, caller) as body:
        return await _accept(request, caller, body, _derive(SourceKind.EDIT, EditVideo, body))


@router.post(
    "/extensions", response_model=Video, openapi_extra=form_body(ExtendVideo, file="video") | _IDEMPOTENCY
)
async def extend_video(request: Request, caller: Creator) -> Response:
    """Create a video that continues another, if the model supports it."""
    async with reading(request, caller) as body:
        return await _accept(request, caller, body, _derive(SourceKind.EXTEND, ExtendVideo, body))


@router.post("/prompt-digest", openapi_extra=form_body(DigestPrompt))
async def digest_prompt(request: Request, caller: Reader) -> PromptDigest:
    """The digest of a prompt, as the audit log has it and GET /v1/videos finds it.

    Prompts are encrypted: only equal ones can be found. The key of the digest is the caller's own.
    """
    services = services_of(request)
    form = await read_form(request, caller, DigestPrompt)
    digest = await services.call(services.digests.digest_prompt, caller.id, form.prompt)
    return PromptDigest(prompt_hmac=digest)


@router.post("/characters", status_code=400, openapi_extra=form_body(Form, file="video"))
async def create_character(_caller: Creator) -> Response:
    """Part of the SDK; no model supports characters."""
    raise UnsupportedOperation("no model supports characters", option="video")


@router.get("/characters/{character_id}", status_code=404)
async def retrieve_character(
    _character_id: Annotated[str, Path(alias="character_id")], _caller: Reader
) -> Response:
    """Part of the SDK; there are no characters."""
    raise JobNotFound("no such character", option="character_id")


@router.get("", response_model=VideoPage)
async def list_videos(
    request: Request,
    caller: Reader,
    after: Annotated[str | None, Query(description="The last id of the previous page.")] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
    where: Annotated[VideoFilter, Depends()] = NO_FILTER,
) -> Response:
    """The caller's videos by age, all of them or those that a filter selects.

    The list continues after a video that was deleted meanwhile.
    """
    services = services_of(request)

    def read() -> VideoPage:
        chosen = where.to_filter(services.models)
        try:
            cursor = to_job_id(after) if after is not None else None
            page = services.reader.page(caller.id, after=cursor, limit=limit, order=order, where=chosen)
        except JobNotFound as exc:
            raise JobNotFound(_UNKNOWN_CURSOR, option="after") from exc
        videos = [Video.of(services, job) for job in page.jobs]
        ids = [video.id for video in videos]
        first, last = (ids[0], ids[-1]) if ids else (None, None)
        return VideoPage(data=videos, first_id=first, last_id=last, has_more=page.has_more)

    return _json((await services.call(read)).model_dump_json())


@router.get("/{video_id}", response_model=Video)
async def retrieve_video(
    request: Request, video_id: VideoId, caller: Reader, prefer: Prefer = None
) -> Response:
    """One video in its current state. With `Prefer: wait=10`, waits up to 10 seconds for it to finish."""
    services, job_id = services_of(request), to_job_id(video_id)
    headers: dict[str, str] = {}
    if seconds := parse_wait(prefer):
        job = await services.call(services.reader.find, caller.id, job_id, has_prompt=False)
        if await wait_for_end(request, job, seconds):
            headers["preference-applied"] = f"wait={seconds}"

    def read() -> Video:
        return Video.of(services, services.reader.find(caller.id, job_id))

    return _to_response(await services.call(read), headers)


@router.post(
    "/{video_id}/remix",
    response_model=Video,
    responses=_LINKS,
    openapi_extra=form_body(RemixVideo) | _IDEMPOTENCY,
)
async def remix_video(request: Request, video_id: VideoId, caller: Creator) -> Response:
    """Render a completed video again with another prompt."""
    async with reading(request, caller) as body:
        form = parse_form(RemixVideo, body)
        source_id = to_job_id(video_id)
        wanted = VideoRequest(**form.model_dump(), verb=SourceKind.REMIX, source_id=source_id)
        return await _accept(request, caller, body, wanted)


@router.post("/{video_id}/cancel", response_model=Video, responses=_LINKS)
async def cancel_video(request: Request, video_id: VideoId, caller: Creator) -> Response:
    """Cancel a video: immediately if it is queued, within a step or a chunk if it runs. Idempotent."""
    services, actor = services_of(request), actor_of(request)

    def cancel() -> Video:
        return Video.of(services, services.queue.cancel(caller.id, to_job_id(video_id), actor))

    return _to_response(await services.call_for_write(caller.id, cancel))


@router.delete("/{video_id}", response_model=DeletedVideo)
async def delete_video(request: Request, video_id: VideoId, caller: Creator) -> Response:
    """Delete a video and everything stored for it. A running video is cancelled first."""
    services, job_id, actor = services_of(request), to_job_id(video_id), actor_of(request)
    job = await services.call_for_write(caller.id, services.queue.cancel, caller.id, job_id, actor)
    deadline = time.monotonic() + DELETE_WAIT_SECONDS
    while not job.state.is_final:
        if time.monotonic() > deadline:
            raise JobActive("the video is still being cancelled; try again in a moment")
        await asyncio.sleep(_DELETE_POLL_SECONDS)
        job = await services.call(services.reader.find, caller.id, job_id, has_prompt=False)

    # Objects first: a row without objects can be deleted again, objects without a row are hard to find.
    await services.call_store(caller.id, services.store.delete, caller.id, job_id)
    await services.call_for_write(caller.id, services.queue.remove, caller.id, job_id, actor)
    return _json(DeletedVideo(id=job_id).model_dump_json())


def to_request(body: Body) -> VideoRequest:
    """The request in the body of POST /v1/videos. Raises UsageError subclasses."""
    form = parse_form(CreateVideo, body, file="input_reference")
    reference = form.input_reference or ImageReference()
    if reference.file_id is not None:
        raise UnsupportedOperation(
            "file ids are not supported; send the image itself", option="input_reference"
        )
    if reference.image_url is not None and reference.video_id is not None:
        raise InvalidField("send image_url or video_id, not both", option="input_reference")
    return VideoRequest(
        **form.model_dump(exclude={"input_reference", "size"}),
        size=Size.parse(form.size) if form.size is not None else None,
        image=body.files.get("input_reference"),
        image_url=reference.image_url,
        image_from=to_job_id(reference.video_id) if reference.video_id is not None else None,
    )


async def _accept(request: Request, tenant: Tenant, body: Body, wanted: VideoRequest) -> Response:
    """Admit the request on a thread; the response is the new job."""
    services = services_of(request)
    idempotency, trace_id = to_idempotency(request, body), TraceId(request.state.trace_id)
    context = RequestContext(tenant, idempotency, trace_id, actor_of(request))

    def accept() -> Video:
        return Video.of(services, services.admission.accept(context, wanted))

    if wanted.source_kind not in (SourceKind.IMAGE, SourceKind.REMIX):
        return _to_response(await services.call_for_write(tenant.id, accept))
    # The image is fetched, decoded, or copied in the store. One that was sent counts as an upload already.
    is_fetched = wanted.source_kind is SourceKind.IMAGE and wanted.image is None
    with services.edge.uploads.holding(tenant.id) if is_fetched else nullcontext():
        return _to_response(await call_slow_work(request, tenant.id, accept))


def _derive(verb: SourceKind, form: type[EditVideo], body: Body) -> VideoRequest:
    """The request that starts from the clip of a video created here."""
    parsed = parse_form(form, body, file="video")
    if "video" in body.files:
        raise UnsupportedOperation(
            f"an uploaded video cannot be used to {verb}; send the id of a video created here"
        )
    if parsed.video is None:
        raise InvalidField("video is missing; send the id of a video created here", option="video")
    fields = parsed.model_dump(exclude={"video"})
    return VideoRequest(**fields, verb=verb, source_id=to_job_id(parsed.video.id))


def to_idempotency(request: Request, body: Body) -> Idempotency:
    """The client's key, or the SDK's retry count."""
    key = request.headers.get("idempotency-key")
    if key is not None and not (0 < len(key) <= _MAX_KEY_CHARS and key.isascii() and key.isprintable()):
        raise InvalidField(
            "Idempotency-Key must have 1 to 255 printable ASCII characters", option="Idempotency-Key"
        )
    retries = request.headers.get("x-stainless-retry-count", "0")
    return Idempotency(body.digest, key, is_retry=retries.isdecimal() and int(retries[:9]) > 0)


def _to_response(video: Video, headers: dict[str, str] | None = None) -> Response:
    return _json(
        video.model_dump_json(), {"openai-poll-after-ms": str(poll_after_ms(video)), **(headers or {})}
    )


def poll_after_ms(video: Video) -> int:
    """The polling interval. The SDK uses the first value for the whole job."""
    low, high = _POLL_MS
    if video.status in {"completed", "failed"}:
        return low
    eta = _UNKNOWN_ETA_SECONDS if video.eta_seconds is None else video.eta_seconds
    return min(max(int(eta * 1000 / _POLLS_PER_JOB), low), high)


def _json(text: str, headers: dict[str, str] | None = None) -> Response:
    return Response(text, media_type="application/json", headers=headers)
