"""The audit log: all of it for operators, and the records of one video for its tenant."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel

from filmgate.api.auth import Operator, Reader
from filmgate.api.openapi import PROBLEMS
from filmgate.api.schemas import to_job_id
from filmgate.api.services import services_of
from filmgate.api.videos import VideoId
from filmgate.audit.log import AuditLog
from filmgate.audit.log import Query as AuditQuery
from filmgate.audit.records import AuditRecord
from filmgate.errors import InvalidField, JobNotFound
from filmgate.jobs import JobId, TenantId

router = APIRouter(tags=["audit"], responses=PROBLEMS)

Sha256 = Annotated[str | None, Query(description="SHA-256 of a clip file, as hex.", pattern="^[0-9a-f]{64}$")]
After = Annotated[str | None, Query(description="`last` of the previous page.", max_length=100)]
Limit = Annotated[int, Query(ge=1, le=1000)]


class AuditEntry(BaseModel):
    """One record. `hash` chains it to the record before it.

    If someone changed the record, `details` may be text, and `at` may be null.
    """

    object: Literal["audit.record"] = "audit.record"
    tenant: str
    number: int
    at: float | None
    action: str
    video: str | None
    clip_sha256: str | None
    details: dict[str, Any] | str
    hash: str


class AuditPage(BaseModel):
    """Records by tenant and number. Send `last` as `after` for the next page."""

    object: Literal["list"] = "list"
    data: list[AuditEntry]
    last: str | None
    has_more: bool


@router.get("/v1/audit")
async def list_audit(
    request: Request,
    _operator: Operator,
    tenant: Annotated[
        str | None, Query(description="Records of this tenant.", min_length=1, max_length=63)
    ] = None,
    video: Annotated[
        str | None, Query(description="Records of this video.", min_length=1, max_length=200)
    ] = None,
    clip_sha256: Sha256 = None,
    after: After = None,
    limit: Limit = 100,
) -> AuditPage:
    """The audit log of all tenants. Needs the `admin` scope. Includes the records of deleted videos."""
    query = AuditQuery(
        TenantId(tenant) if tenant is not None else None,
        JobId(video) if video is not None else None,
        clip_sha256=clip_sha256,
    )
    services = services_of(request)
    return await services.call(_read_page, services.audit, query, _parse_cursor(after), limit)


@router.get("/v1/videos/{video_id}/audit")
async def list_video_audit(
    request: Request, video_id: VideoId, caller: Reader, after: After = None, limit: Limit = 1000
) -> AuditPage:
    """The records of one of the caller's videos, oldest first, even after it was deleted."""
    services, query = services_of(request), AuditQuery(caller.id, to_job_id(video_id))
    page = await services.call(_read_page, services.audit, query, _parse_cursor(after), limit)
    if not page.data and after is None:
        raise JobNotFound("no such video")
    return page


def _read_page(
    log: AuditLog, query: AuditQuery, cursor: tuple[TenantId, int] | None, limit: int
) -> AuditPage:
    found = log.page(query, after=cursor, limit=limit + 1)
    shown = found[:limit]
    last = f"{shown[-1].tenant_id}:{shown[-1].number}" if shown else None
    return AuditPage(data=[_to_entry(record) for record in shown], last=last, has_more=len(found) > limit)


def _parse_cursor(after: str | None) -> tuple[TenantId, int] | None:
    if after is None:
        return None
    tenant, _, number = after.partition(":")
    if not (number.isascii() and number.isdecimal() and len(number) <= 18):
        raise InvalidField("`after` must be the `last` of a page", option="after")
    return TenantId(tenant), int(number)


def _to_entry(record: AuditRecord) -> AuditEntry:
    return AuditEntry.model_validate(record.to_shown())
