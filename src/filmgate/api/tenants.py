"""/v1/tenants: tenants, their quotas and API keys. Needs the `admin` scope."""

from dataclasses import asdict, replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel, Field

from filmgate.api.auth import Operator, actor_of
from filmgate.api.forms import Form, read_form
from filmgate.api.openapi import PROBLEMS, form_body, links
from filmgate.api.schemas import Status, status_of, to_job_id
from filmgate.api.services import Services, services_of
from filmgate.api.videos import VideoId
from filmgate.errors import TenantInUse
from filmgate.jobs import Job, ScreeningAction, Share, TenantId
from filmgate.jobs import ManagedPolicy as StoredPolicy
from filmgate.tenants.base import IssuedKey, PartialObjective, Scope
from filmgate.tenants.base import Tenant as StoredTenant

router = APIRouter(prefix="/v1/tenants", tags=["tenants"], responses=PROBLEMS)

TenantName = Annotated[str, Path(description="The name of a tenant.", max_length=63, pattern="^[!-~]+$")]
MAX_OVERLAP_SECONDS = 30 * 86400.0
_LINKS = links(
    201,
    "tenant_id",
    retrieve="GET /v1/tenants/{tenant_id}",
    change="PATCH /v1/tenants/{tenant_id}",
    rotate="POST /v1/tenants/{tenant_id}/rotate",
    delete="DELETE /v1/tenants/{tenant_id}",
)


class ManagedPolicy(Form):
    """What a managed provider may do for a tenant."""

    is_allowed: bool = False
    regions: list[str] = Field(default=[], max_length=50)
    max_usd_per_clip: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    may_resize: bool = False
    may_change_length: bool = False

    def apply(self, policy: StoredPolicy) -> StoredPolicy:
        """The policy with the fields that were sent."""
        sent = self.model_dump(exclude_unset=True)
        return replace(policy, **sent | {"regions": tuple(sent.get("regions", policy.regions))})


class Objective(Form):
    """The objective of all clips of a tenant. A field that is null comes from the class of the clip."""

    seconds: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="A clip must be ready within this time."
    )
    target: float | None = Field(default=None, gt=0, lt=1, description="Share of jobs on time: 0.99 is 99 %.")

    def apply(self, objective: PartialObjective) -> PartialObjective:
        """The objective with the fields that were sent."""
        return replace(objective, **self.model_dump(exclude_unset=True))


class ChangeTenant(Form):
    """PATCH /v1/tenants/{id}. Fields that are left out keep their values, in `managed` and `objective` too;
    null removes a limit.
    """

    weight: float = Field(default=1.0, ge=0.01, le=1e6, description="Share of the GPUs.")
    max_queued: int | None = Field(default=None, ge=1, le=10**9)
    max_running: int | None = Field(default=None, ge=1, le=10**9)
    max_gpu_seconds_per_day: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    scopes: list[Scope] = Field(default=[Scope.GENERATE, Scope.READ], min_length=1, max_length=3)
    certificate: str | None = Field(
        default=None,
        max_length=1000,
        pattern=r"^[^\x00]*$",
        description="RFC 4514 subject of the client certificate.",
    )
    managed: ManagedPolicy = ManagedPolicy()
    screening: dict[str, ScreeningAction] = Field(
        default={}, max_length=50, description="Actions by category; all others have their default action."
    )
    is_enabled: bool = True
    is_dedicated: bool = Field(default=False, description="Render its jobs on its own GPU workers only.")
    objective: Objective = Objective()

    def apply(self, tenant: StoredTenant) -> StoredTenant:
        """The tenant with the fields that were sent."""
        sent = self.model_fields_set
        share = {name: getattr(self, name) for name in _SHARE_FIELDS & sent}
        changes: dict[str, Any] = {"share": replace(tenant.share, **share)}
        if "scopes" in sent:
            changes["scopes"] = frozenset(self.scopes)
        if "managed" in sent:
            changes["managed"] = self.managed.apply(tenant.managed)
        if "objective" in sent:
            changes["objective"] = self.objective.apply(tenant.objective)
        plain = {"certificate", "is_enabled", "is_dedicated", "screening"}
        changes |= {name: getattr(self, name) for name in plain & sent}
        return replace(tenant, **changes)


class AddTenant(ChangeTenant):
    """POST /v1/tenants."""

    id: str = Field(pattern="^[a-z0-9][a-z0-9-]{0,62}$", description="a-z, 0-9 and -.")


class RotateKey(Form):
    """POST /v1/tenants/{id}/rotate."""

    overlap_seconds: float = Field(
        default=0, ge=0, le=MAX_OVERLAP_SECONDS, description="How long older keys stay valid."
    )


class Tenant(BaseModel):
    """A tenant. API keys are never part of it."""

    id: str
    object: Literal["tenant"] = "tenant"
    is_enabled: bool
    created_at: int
    scopes: list[Scope]
    weight: float
    max_queued: int | None
    max_running: int | None
    max_gpu_seconds_per_day: float | None
    certificate: str | None
    managed: ManagedPolicy
    is_dedicated: bool
    objective: Objective
    screening: dict[str, ScreeningAction]


class TenantWithKey(Tenant):
    """A tenant and a new API key, which is not shown again."""

    api_key: str


class TenantList(BaseModel):
    """All tenants by name."""

    object: Literal["list"] = "list"
    data: list[Tenant]


class CancelledVideo(BaseModel):
    """A video that an operator cancelled, without its prompt. A running video stops within a step."""

    id: str
    object: Literal["video.cancelled"] = "video.cancelled"
    tenant: str
    status: Status


class ScreeningCategory(BaseModel):
    """A category of prompts; a tenant cannot change a fixed action."""

    name: str
    action: ScreeningAction
    is_fixed: bool


class ScreeningCategories(BaseModel):
    """All categories of the screening rules."""

    object: Literal["list"] = "list"
    data: list[ScreeningCategory]


class DeletedTenant(BaseModel):
    """A deleted tenant."""

    id: str
    object: Literal["tenant.deleted"] = "tenant.deleted"
    deleted: Literal[True] = True


_SHARE_FIELDS = set(Share.__dataclass_fields__)


@router.get("")
async def list_tenants(request: Request, _operator: Operator) -> TenantList:
    """All tenants, without keys."""
    services = services_of(request)
    return TenantList(data=[to_tenant(each) for each in await services.call(services.tenants.tenants)])


@router.post("", status_code=201, responses=_LINKS, openapi_extra=form_body(AddTenant))
async def add_tenant(request: Request, response: Response, operator: Operator) -> TenantWithKey:
    """Create a tenant and its first API key."""
    response.headers["Cache-Control"] = "no-store"
    services, wanted = services_of(request), await read_form(request, operator, AddTenant)
    check_screening(services, wanted)
    tenant = wanted.apply(StoredTenant(TenantId(wanted.id)))
    add, actor = services.tenants.add, actor_of(request)
    return with_key(await services.call_for_write(operator.id, add, tenant, actor))


@router.get("/screening-categories")
async def list_screening_categories(request: Request, _operator: Operator) -> ScreeningCategories:
    """All screening categories with their default actions."""
    categories = services_of(request).admission.rules.categories
    return ScreeningCategories(
        data=[
            ScreeningCategory(name=name, action=category.action, is_fixed=category.is_fixed)
            for name, category in sorted(categories.items())
        ]
    )


@router.post("/{tenant_id}/videos/{video_id}/cancel")
async def cancel_video_of_tenant(
    request: Request, tenant_id: TenantName, video_id: VideoId, operator: Operator
) -> CancelledVideo:
    """Cancel a queued or running video of any tenant. Idempotent."""
    services = services_of(request)
    job_id, actor = to_job_id(video_id), actor_of(request)

    def cancel() -> Job:
        cancelled = services.queue.cancel(TenantId(tenant_id), job_id, actor)
        services.forecast.expire()  # GET /v1/queue no longer lists it
        return cancelled

    job = await services.call_for_write(operator.id, cancel)
    return CancelledVideo(id=job.id, tenant=job.tenant_id, status=status_of(job))


@router.get("/{tenant_id}")
async def retrieve_tenant(request: Request, tenant_id: TenantName, _operator: Operator) -> Tenant:
    """One tenant."""
    services = services_of(request)
    return to_tenant(await services.call(services.tenants.find, TenantId(tenant_id)))


@router.patch("/{tenant_id}", openapi_extra=form_body(ChangeTenant))
async def change_tenant(request: Request, tenant_id: TenantName, operator: Operator) -> Tenant:
    """Change quotas, weight, scopes, certificate, policy or state."""
    services, wanted = services_of(request), await read_form(request, operator, ChangeTenant)
    check_screening(services, wanted)
    changed = wanted.apply(operator)
    if tenant_id == operator.id and not changed.may(Scope.ADMIN):
        raise TenantInUse(
            "you cannot remove your own admin scope or disable your own tenant; use an admin key of another "
            "tenant",
            option="tenant_id",
        )
    update, actor = services.tenants.update, actor_of(request)
    return to_tenant(
        await services.call_for_write(operator.id, update, TenantId(tenant_id), wanted.apply, actor)
    )


@router.delete("/{tenant_id}")
async def delete_tenant(request: Request, tenant_id: TenantName, operator: Operator) -> DeletedTenant:
    """Delete a disabled tenant that has no videos, its API keys and its encryption key."""
    services, actor = services_of(request), actor_of(request)
    delete = services.offboarding.delete_unused
    await services.call_for_write(operator.id, delete, TenantId(tenant_id), actor)
    return DeletedTenant(id=tenant_id)


@router.post("/{tenant_id}/rotate", openapi_extra=form_body(RotateKey))
async def rotate_key(
    request: Request, response: Response, tenant_id: TenantName, operator: Operator
) -> TenantWithKey:
    """Create an API key; older keys expire now or after the overlap."""
    response.headers["Cache-Control"] = "no-store"
    services, wanted = services_of(request), await read_form(request, operator, RotateKey)
    rotate, actor = services.tenants.rotate, actor_of(request)
    overlap = wanted.overlap_seconds
    return with_key(await services.call_for_write(operator.id, rotate, TenantId(tenant_id), overlap, actor))


def check_screening(services: Services, wanted: ChangeTenant) -> None:
    """Raises UsageError for a category that does not exist or cannot be changed."""
    for name in wanted.screening:
        services.admission.rules.require_changeable(name, "screening")


def to_tenant(tenant: StoredTenant) -> Tenant:
    """A tenant as JSON."""
    return Tenant(**_fields(tenant))


def with_key(issued: IssuedKey) -> TenantWithKey:
    return TenantWithKey(**_fields(issued.tenant), api_key=issued.secret)


def _fields(tenant: StoredTenant) -> dict[str, Any]:
    managed = asdict(tenant.managed) | {"regions": list(tenant.managed.regions)}
    return asdict(tenant.share) | {
        "id": tenant.id,
        "is_enabled": tenant.is_enabled,
        "created_at": int(tenant.created_at),
        "scopes": sorted(tenant.scopes),
        "certificate": tenant.certificate,
        "screening": dict(tenant.screening),
        "managed": ManagedPolicy(**managed),
        "is_dedicated": tenant.is_dedicated,
        "objective": Objective(**asdict(tenant.objective)),
    }
