"""Routes for operators: usage, the queue, live workers and the history of the service."""

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel

from filmgate.api.auth import Operator, Reader
from filmgate.api.openapi import PROBLEMS
from filmgate.api.schemas import rounded, usd_of
from filmgate.api.services import Services, services_of
from filmgate.jobs import JobState, Reason, Route, WorkerId
from filmgate.scheduling import records
from filmgate.scheduling.durations import COLD_START, MODEL_LOAD, merge
from filmgate.scheduling.records import DURATION_BOUNDS, EndedJobs, Histogram
from filmgate.tenants.base import Scope, Tenant

WorkerName = Annotated[str, Path(description="The id of a live worker.", max_length=200, pattern="^[!-~]+$")]
router = APIRouter(tags=["operations"], responses=PROBLEMS)

_MAX_LISTED_JOBS = 200


class Usage(BaseModel):
    """The caller: its scopes, what it used since midnight UTC, and its quotas. Null means no limit."""

    object: Literal["usage"] = "usage"
    tenant: str
    scopes: list[Scope]
    gpu_seconds_today: float
    max_gpu_seconds_per_day: float | None
    max_queued: int | None
    max_running: int | None


class TenantUsage(Usage):
    """A tenant and its usage today."""

    weight: float
    is_enabled: bool


class JobCount(BaseModel):
    """Jobs of one tenant, route, model and state."""

    tenant: str
    route: Route
    model: str
    state: JobState
    jobs: int
    gpu_seconds: float


class QueuedVideo(BaseModel):
    """A queued job and its forecast; seconds are null while no live worker serves it.

    A job of a dedicated tenant waits for the tenant's own workers.
    """

    id: str
    tenant: str
    route: Route
    model: str
    waiting_seconds: float
    is_dedicated: bool
    position: int | None
    starts_in_seconds: float | None
    ready_in_seconds: float | None


class Queue(BaseModel):
    """The queue of all tenants. `data` lists the first jobs, the counts include all of them."""

    object: Literal["queue"] = "queue"
    queued: int
    running: int
    backlog_seconds: float
    oldest_queued_seconds: float
    counts: list[JobCount]
    data: list[QueuedVideo]


class WorkerGpu(BaseModel):
    """The last reading of a worker's GPU; null if it is not reported. The metrics are filmgate_gpu_*."""

    is_healthy: bool
    temperature_celsius: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None


class DeviceUsage(BaseModel):
    """How long a worker's device was busy and idle since the worker was ready.

    `gap` is the idle time between two clips while the next job was already waiting, in seconds; `gaps` counts
    these periods. The metrics are filmgate_worker_busy_seconds_total, filmgate_worker_idle_seconds_total and
    filmgate_worker_gap_seconds.
    """

    busy: float
    idle: float
    gap: float
    gaps: int


class LiveWorker(BaseModel):
    """A worker that sent a heartbeat in the last 30 seconds. It serves only `tenants`, if there are any.

    `gpu` is null on a CPU and for a managed worker, which has no `device_seconds` either; `speed` is below 1
    while heat slows the GPU.
    """

    id: str
    route: Route
    models: list[str]
    device: str
    capacity: int
    running: int
    tenants: list[str]
    is_draining: bool
    speed: float
    gpu: WorkerGpu | None
    device_seconds: DeviceUsage | None


class WorkerList(BaseModel):
    """All live workers."""

    object: Literal["list"] = "list"
    data: list[LiveWorker]


class FinishedJobs(JobCount):
    """Finished jobs of one tenant, route, model and reason."""

    reason: Reason | None
    usd: float | None


class DurationHistogram(BaseModel):
    """A histogram: `counts[i]` jobs took at most `bounds[i]` seconds, the last count took longer.

    `kind` is `wait`, `total` or a stage; the metrics are filmgate_wait_seconds, filmgate_job_seconds and
    filmgate_stage_seconds.
    """

    kind: str
    model: str
    route: Route
    counts: list[int]
    seconds: float


class ServiceStatistics(BaseModel):
    """The history of the service since its first start. Counts only grow."""

    object: Literal["statistics"] = "statistics"
    slo_seconds: float
    bounds: list[float]
    ended: list[FinishedJobs]
    durations: list[DurationHistogram]
    tenants: list[TenantUsage]


@router.get("/v1/usage")
async def retrieve_usage(request: Request, caller: Reader) -> Usage:
    """The caller's tenant, scopes, usage today and quotas."""
    services = services_of(request)
    return await services.call(_usage, services, caller)


@router.get("/v1/queue")
async def retrieve_queue(request: Request, _operator: Operator) -> Queue:
    """What waits and runs, by tenant and model, with the forecast. Needs the `admin` scope."""
    services = services_of(request)
    return await services.call(_queue, services)


@router.get("/v1/workers")
async def list_workers(request: Request, _operator: Operator) -> WorkerList:
    """All live workers. Needs the `admin` scope."""
    services = services_of(request)
    return await services.call(_workers, services)


@router.post("/v1/workers/{worker_id}/drain")
async def drain_worker(request: Request, worker_id: WorkerName, operator: Operator) -> WorkerList:
    """Drain a worker: it finishes its job and takes no more, then idles until its process is stopped.

    Needs the `admin` scope. Idempotent; the worker receives the request within five seconds.
    """
    services = services_of(request)
    await services.call_for_write(operator.id, services.workers.drain, WorkerId(worker_id))
    return await services.call(_workers, services)


@router.get("/v1/statistics")
async def retrieve_statistics(request: Request, _operator: Operator) -> ServiceStatistics:
    """Finished jobs, durations, and the usage of all tenants. Needs the `admin` scope."""
    services = services_of(request)
    return await services.call(_statistics, services)


def _usage(services: Services, tenant: Tenant) -> TenantUsage:
    return TenantUsage(
        **asdict(tenant.share),
        tenant=tenant.id,
        scopes=sorted(tenant.scopes),
        gpu_seconds_today=round(services.reader.gpu_seconds_today(tenant.id), 3),
        is_enabled=tenant.is_enabled,
    )


def _queue(services: Services) -> Queue:
    backlog, forecast, now = services.reader.backlog(), services.forecast.get(), time.time()
    listed = []
    for job in forecast.snapshot.queued[:_MAX_LISTED_JOBS]:
        if job.job_id is None:
            continue
        slot = forecast.slots.get(job.job_id)
        listed.append(
            QueuedVideo(
                id=job.job_id,
                tenant=job.tenant_id,
                route=job.route,
                model=job.model,
                waiting_seconds=round(max(now - job.created_at, 0.0), 1),
                is_dedicated=job.tenant_id in forecast.snapshot.dedicated,
                position=slot.position if slot else None,
                starts_in_seconds=rounded(slot.starts_in) if slot else None,
                ready_in_seconds=rounded(slot.ends_in) if slot else None,
            )
        )
    oldest = backlog.oldest_queued_at
    return Queue(
        queued=backlog.queued_jobs,
        running=backlog.running_jobs,
        backlog_seconds=round(sum(c.gpu_seconds for c in backlog.counts if c.state is JobState.QUEUED), 1),
        oldest_queued_seconds=round(max(now - oldest, 0.0), 1) if oldest is not None else 0.0,
        counts=[_count(count) for count in backlog.counts],
        data=listed,
    )


def _workers(services: Services) -> WorkerList:
    running = Counter(job.worker_id for job in services.forecast.get().snapshot.running)
    return WorkerList(
        data=[
            LiveWorker.model_validate(
                asdict(worker) | {"id": worker.worker_id, "running": running[worker.worker_id]}
            )
            for worker in services.reader.backlog().workers
        ]
    )


def _statistics(services: Services) -> ServiceStatistics:
    statistics, price = services.reader.statistics(), services.settings.usd_per_gpu_hour
    return ServiceStatistics(
        slo_seconds=services.admission.slo_seconds,
        bounds=list(DURATION_BOUNDS),
        ended=[
            FinishedJobs(**_count(end).model_dump(), reason=end.reason, usd=_usd(end, price))
            for end in _without_versions(statistics.ended)
        ],
        durations=[_durations(histogram) for histogram in _per_model_and_route(statistics.histograms)],
        tenants=[_usage(services, tenant) for tenant in services.tenants.tenants()],
    )


def _count(group: records.JobCount | EndedJobs) -> JobCount:
    return JobCount(
        tenant=group.tenant_id,
        route=group.route,
        model=group.model,
        state=group.state,
        jobs=group.jobs,
        gpu_seconds=round(group.gpu_seconds, 3),
    )


def _usd(end: EndedJobs, usd_per_gpu_hour: float) -> float | None:
    if end.route is Route.MANAGED:
        return round(end.provider_usd, 6)
    return usd_of(end.gpu_seconds, usd_per_gpu_hour)


def _without_versions(ended: Iterable[EndedJobs]) -> Iterable[EndedJobs]:
    """The sums over the versions of a model."""
    sums: dict[EndedJobs, EndedJobs] = {}
    for end in ended:
        key = replace(end, version="", jobs=0, gpu_seconds=0.0, provider_usd=0.0)
        before = sums.get(key, key)
        sums[key] = replace(
            before,
            jobs=before.jobs + end.jobs,
            gpu_seconds=before.gpu_seconds + end.gpu_seconds,
            provider_usd=before.provider_usd + end.provider_usd,
        )
    return sums.values()


def _per_model_and_route(histograms: Iterable[Histogram]) -> list[Histogram]:
    """The durations of jobs over all versions and tenants; starts of workers are left out."""
    of_jobs = (each for each in histograms if each.series.kind not in (MODEL_LOAD, COLD_START))
    return merge(of_jobs, "kind", "model", "route")


def _durations(histogram: Histogram) -> DurationHistogram:
    return DurationHistogram(
        kind=histogram.series.kind,
        model=histogram.series.model,
        route=histogram.series.route,
        counts=list(histogram.counts),
        seconds=round(histogram.seconds, 3),
    )
