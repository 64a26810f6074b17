"""The queue at one moment, as values: what a forecast starts from."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import repeat

from filmgate.jobs import JobId, Route, RouteReason, TenantId, VideoSpec, WorkerId
from filmgate.scheduling.workers import WorkerStatus


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A queued job. `busy_seconds` is how long it occupies a worker, `share_seconds` what its tenant pays.

    `ready_in` is set for a job that bypasses fair share: the seconds until its backoff or lost lease is over.
    `job_id` is None for a job that stands for one of many (see Tail).
    """

    job_id: JobId | None
    tenant_id: TenantId
    route: Route
    model: str
    busy_seconds: float
    share_seconds: float
    deadline_at: float
    seq: int
    upload_seconds: float = 0.0
    created_at: float = 0.0
    reason: RouteReason = RouteReason.DEFAULT
    ready_in: float | None = None
    was_running: bool = False
    spec: VideoSpec | None = None


@dataclass(frozen=True, slots=True)
class Tail:
    """Queued jobs beyond the listed ones of the same tenant, route and model."""

    tenant_id: TenantId
    route: Route
    model: str
    jobs: int
    gpu_seconds: float

    def expand(self) -> Iterator[QueuedJob]:
        """As many average jobs, after all listed ones."""
        seconds = self.gpu_seconds / self.jobs
        average = QueuedJob(
            None, self.tenant_id, self.route, self.model, seconds, seconds, float("inf"), seq=0
        )
        return repeat(average, self.jobs)


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job on a live worker. `free_in` is when it stops occupying the worker, `ends_in` when it is done."""

    job_id: JobId
    tenant_id: TenantId
    route: Route
    worker_id: WorkerId
    free_in: float
    ends_in: float


@dataclass(frozen=True, slots=True)
class Share:
    """A tenant's fair-share account."""

    weight: float = 1.0
    virtual_time: float = 0.0
    running: int = 0
    max_running: int | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Queued and running jobs, fair-share accounts and live workers. `now` is in Unix seconds."""

    now: float
    queued: tuple[QueuedJob, ...] = ()
    tails: tuple[Tail, ...] = ()
    running: tuple[RunningJob, ...] = ()
    shares: Mapping[TenantId, Share] = field(default_factory=dict)
    workers: tuple[WorkerStatus, ...] = ()
    dedicated: frozenset[TenantId] = frozenset()  # tenants that shared GPU workers never serve

    def virtual_now(self, tenant_id: TenantId) -> float:
        """The virtual time at which a tenant without queued jobs joins those that share its GPUs."""
        waiting = {job.tenant_id for job in self.queued} | {tail.tenant_id for tail in self.tails}
        is_dedicated = tenant_id in self.dedicated
        alike = {tenant for tenant in waiting if (tenant in self.dedicated) is is_dedicated}
        times = (self.shares[tenant].virtual_time for tenant in alike if tenant in self.shares)
        return min(times, default=0.0)
