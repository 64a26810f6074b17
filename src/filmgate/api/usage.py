"""Usage over time, in the format of OpenAI's usage API.

GET /v1/usage/videos: finished jobs, latencies and cost. GET /v1/usage/workers: busy and idle devices.
"""

import time
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel, Field

from filmgate.api.auth import Operator, Reader
from filmgate.api.openapi import PROBLEMS
from filmgate.api.schemas import rounded
from filmgate.api.services import Services, services_of
from filmgate.errors import InvalidField, ScopeMissing
from filmgate.jobs import Route, TenantId
from filmgate.scheduling.history import FINE_SECONDS, GROUPS, KEEP_SECONDS, DeviceSeconds, Ended, Window
from filmgate.tenants.base import Scope, Tenant

router = APIRouter(tags=["operations"], responses=PROBLEMS)

BucketWidth = Literal["5m", "1h", "1d", "all"]
_WIDTHS: dict[str, int] = {"5m": 300, "1h": 3600, "1d": 86400, "all": 0}
_MAX_BUCKETS = 1000


class UsageResult(BaseModel):
    """Finished jobs of one group; a field by which jobs are not grouped is null.

    `judged` counts jobs that have an objective: all except cancelled and invalid ones. `late` counts judged
    jobs that failed or missed their objective. Seconds are from acceptance to completion; percentiles are at
    most 19 % off.
    """

    object: Literal["usage.videos.result"] = "usage.videos.result"
    tenant: str | None = None
    model: str | None = None
    route: Route | None = None
    reason: str | None = Field(default=None, description="Why jobs failed; `completed` if they did not.")
    completed: int
    failed: int
    cancelled: int
    judged: int
    late: int
    gpu_seconds: float
    usd: float | None = Field(description="Null without `api.usd_per_gpu_hour` and a provider's price.")
    mean_seconds: float | None
    p50_seconds: float | None
    p95_seconds: float | None
    p99_seconds: float | None


class Bucket(BaseModel):
    """A period, in Unix seconds."""

    object: Literal["bucket"] = "bucket"
    start_time: int
    end_time: int


class UsageBucket(Bucket):
    """A period, in Unix seconds; without jobs, `results` is empty."""

    results: list[UsageResult]


class Page(BaseModel):
    """All buckets of the window: there is one page."""

    object: Literal["page"] = "page"
    has_more: Literal[False] = False
    next_page: None = None


class UsagePage(Page):
    """All buckets of the window: there is one page."""

    data: list[UsageBucket]


class WorkerUsage(BaseModel):
    """Seconds in which the devices of all workers were busy and idle.

    `gap_seconds` is the idle time between two clips while the next job was already waiting; `gaps` counts
    these periods. The metrics are filmgate_worker_busy_seconds_total, filmgate_worker_idle_seconds_total and
    filmgate_worker_gap_seconds.
    """

    object: Literal["usage.workers.result"] = "usage.workers.result"
    busy_seconds: float
    idle_seconds: float
    gap_seconds: float
    gaps: int


class WorkerUsageBucket(Bucket):
    """A period, in Unix seconds; without workers, `results` is empty."""

    results: list[WorkerUsage]


class WorkerUsagePage(Page):
    """All buckets of the window: there is one page."""

    data: list[WorkerUsageBucket]


@dataclass(frozen=True, slots=True)
class UsageWindow:
    """The query parameters that name a window."""

    start_time: Annotated[float, Query(ge=0, le=1e11, description="Unix seconds.")]
    end_time: Annotated[float | None, Query(ge=0, le=1e11, description="Unix seconds. Defaults to now.")] = (
        None
    )
    bucket_width: BucketWidth = "1d"

    def to_window(self, now: float) -> Window:
        """Raises InvalidField for a window that is empty, too long or no longer kept."""
        seconds, start = _WIDTHS[self.bucket_width], self.start_time
        end = self.end_time if self.end_time is not None else now
        if end <= start:
            raise InvalidField("end_time must be after start_time", option="end_time")
        if seconds and (end - start) / seconds > _MAX_BUCKETS:
            raise InvalidField(
                f"the window has more than {_MAX_BUCKETS} buckets; use a wider bucket_width",
                option="bucket_width",
            )
        if seconds == FINE_SECONDS and start < now - KEEP_SECONDS[FINE_SECONDS]:
            raise InvalidField(
                "buckets of 5m are kept for 2 days; use 1h or a later start_time", option="bucket_width"
            )
        return Window.around(start, end, seconds, now)


@dataclass(frozen=True, slots=True)
class UsageQuery(UsageWindow):
    """The query parameters of GET /v1/usage/videos."""

    group_by: Annotated[
        str, Query(description="Any of tenant, model, route and reason, separated by commas.", max_length=60)
    ] = ""
    tenant: Annotated[
        str | None, Query(description="Only this tenant.", max_length=63, pattern="^[!-~]+$")
    ] = None

    def to_names(self) -> tuple[str, ...]:
        """What to group by. Raises InvalidField."""
        names = tuple(dict.fromkeys(name.strip() for name in self.group_by.split(",") if name.strip()))
        if unknown := [name for name in names if name not in GROUPS]:
            raise InvalidField(
                f"cannot group by {unknown[0]!r}; use one of {', '.join(GROUPS)}", option="group_by"
            )
        return names

    def seen_by(self, caller: Tenant) -> TenantId | None:
        """The only tenant whose jobs the caller sees, or None for all. Raises ScopeMissing."""
        wanted = TenantId(self.tenant) if self.tenant is not None else None
        if caller.may(Scope.ADMIN):
            return wanted
        if wanted not in (None, caller.id):
            raise ScopeMissing("reading the usage of another tenant needs the admin scope")
        return caller.id


@router.get("/v1/usage/videos")
async def list_usage(request: Request, caller: Reader, query: Annotated[UsageQuery, Depends()]) -> UsagePage:
    """Finished jobs by time: counts, latency percentiles, GPU-seconds and cost. Days are in UTC.

    A key with the `admin` scope sees all tenants; any other key sees its own tenant. Hours are kept for 100
    days, buckets of `5m` for 2 days; `all` is one bucket. Times are rounded out to whole buckets.
    """
    services = services_of(request)
    window, names = query.to_window(time.time()), query.to_names()
    return await services.call(_read, services, window, names, query.seen_by(caller))


@router.get("/v1/usage/workers")
async def list_worker_usage(
    request: Request, _operator: Operator, query: Annotated[UsageWindow, Depends()]
) -> WorkerUsagePage:
    """Busy and idle seconds of your devices by time. Needs the `admin` scope.

    Kept and rounded as in `/v1/usage/videos`. Managed workers have no device.
    """
    services = services_of(request)
    return await services.call(_read_workers, services, query.to_window(time.time()))


def _read_workers(services: Services, window: Window) -> WorkerUsagePage:
    found, starts = services.history.read_devices(window), window.starts
    return WorkerUsagePage(
        data=[
            WorkerUsageBucket(
                start_time=start,
                end_time=start + starts.step,
                results=[_to_worker_usage(found[start])] if start in found else [],
            )
            for start in starts
        ]
    )


def _to_worker_usage(seconds: DeviceSeconds) -> WorkerUsage:
    return WorkerUsage(
        busy_seconds=round(seconds.busy, 3),
        idle_seconds=round(seconds.idle, 3),
        gap_seconds=round(seconds.gap, 3),
        gaps=seconds.gaps,
    )


def _read(
    services: Services, window: Window, names: tuple[str, ...], tenant_id: TenantId | None
) -> UsagePage:
    found: dict[int, list[Ended]] = {}
    for ended in services.history.read(window, names, tenant_id):
        found.setdefault(ended.period, []).append(ended)
    price, starts = services.settings.usd_per_gpu_hour, window.starts
    return UsagePage(
        data=[
            UsageBucket(
                start_time=start,
                end_time=start + starts.step,
                results=[_to_result(ended, price) for ended in found.get(start, ())],
            )
            for start in starts
        ]
    )


def _to_result(ended: Ended, usd_per_gpu_hour: float) -> UsageResult:
    group = ended.group
    usd = ended.gpu_seconds / 3600 * usd_per_gpu_hour + ended.provider_usd
    latencies = ended.latencies
    return UsageResult(
        tenant=group.get("tenant"),
        model=group.get("model"),
        route=Route(group["route"]) if "route" in group else None,
        reason=(group["reason"] or "completed") if "reason" in group else None,
        completed=ended.completed,
        failed=ended.failed,
        cancelled=ended.cancelled,
        judged=ended.judged,
        late=ended.late,
        gpu_seconds=round(ended.gpu_seconds, 3),
        usd=round(usd, 6) if usd_per_gpu_hour or ended.provider_usd else None,
        mean_seconds=rounded(latencies.mean, 3),
        p50_seconds=rounded(latencies.quantile(0.5), 3),
        p95_seconds=rounded(latencies.quantile(0.95), 3),
        p99_seconds=rounded(latencies.quantile(0.99), 3),
    )
