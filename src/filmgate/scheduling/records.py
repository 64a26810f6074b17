"""What the JobReader returns: pages, events, counts and durations."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from filmgate.jobs import Job, JobState, Reason, Route, RouteReason, Stage, StageSeconds, TenantId, VideoSpec
from filmgate.scheduling.workers import WorkerStatus
from filmgate.slo.counts import SloCount

# Upper bounds of the duration histograms, in seconds.
DURATION_BOUNDS = (
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 90.0, 120.0, 300.0, 600.0, 1800.0, 3600.0,
)  # fmt: skip

_NO_TENANT = TenantId("")


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which of a tenant's jobs to list. None: any. Times are Unix seconds.

    `prompt_hmac` is the digest of the prompt under the tenant's own key.
    """

    model: str | None = None
    states: tuple[JobState, ...] | None = None
    created_from: float | None = None
    created_before: float | None = None
    prompt_hmac: str | None = None


ALL_JOBS = JobFilter()


@dataclass(frozen=True, slots=True)
class Page:
    """Some of a tenant's jobs, and whether more follow."""

    jobs: tuple[Job, ...]
    has_more: bool


@dataclass(frozen=True, slots=True)
class JobEvent:
    """A change of state, stage or route, ordered by `revision`. Progress within a stage is not an event.

    `route` and `route_reason` are set when the event moved the job to another route.
    """

    revision: int
    at: float
    state: JobState
    stage: Stage | None
    attempt: int
    reason: Reason | None
    route: Route | None = None
    route_reason: RouteReason | None = None


@dataclass(frozen=True, slots=True)
class Measurement:
    """The spec of a job that local GPUs have completed, and the seconds each stage took."""

    spec: VideoSpec
    measured: StageSeconds


@dataclass(frozen=True, slots=True)
class JobCount:
    """Queued or running jobs of one tenant, route and model, and their predicted GPU-seconds."""

    tenant_id: TenantId
    route: Route
    model: str
    state: JobState
    jobs: int
    gpu_seconds: float


@dataclass(frozen=True, slots=True)
class Backlog:
    """Counts of open jobs, and the live workers. `oldest_queued_at` is None when nothing is queued."""

    counts: tuple[JobCount, ...]
    oldest_queued_at: float | None
    workers: tuple[WorkerStatus, ...] = ()

    @property
    def queued_jobs(self) -> int:
        return sum(count.jobs for count in self.counts if count.state is JobState.QUEUED)

    @property
    def running_jobs(self) -> int:
        return sum(count.jobs for count in self.counts if count.state is JobState.RUNNING)


@dataclass(frozen=True, slots=True)
class EndedJobs:
    """Jobs that ended, their measured GPU-seconds and what a provider charges for them. Only grows."""

    tenant_id: TenantId
    route: Route
    model: str
    state: JobState
    reason: Reason | None
    jobs: int
    gpu_seconds: float
    version: str = ""
    provider_usd: float = 0.0


@dataclass(frozen=True, slots=True)
class RoutedJobs:
    """Routing decisions other than the default. Only grows."""

    tenant_id: TenantId
    route: Route
    model: str
    reason: RouteReason
    jobs: int


@dataclass(frozen=True, slots=True, order=True)
class Series:
    """What a histogram measures. `kind` is `wait`, `total`, `model_load`, `cold_start` or a stage.

    Only `wait` and `total` are kept per tenant.
    """

    kind: str
    model: str
    version: str = ""
    route: Route = Route.GPU
    tenant_id: TenantId = _NO_TENANT


@dataclass(frozen=True, slots=True)
class Example:
    """One duration in a bucket, when it was measured, and the trace of its job."""

    trace_id: str
    seconds: float
    at: float


@dataclass(frozen=True, slots=True)
class Histogram:
    """Durations of one series: a count per bound, and one above the last."""

    series: Series
    counts: tuple[int, ...]
    seconds: float
    examples: Mapping[int, Example] = field(default_factory=dict)  # the newest of each bucket


@dataclass(frozen=True, slots=True)
class Statistics:
    """The history of the whole service. Written in the same transactions as the jobs: exact after a crash."""

    ended: tuple[EndedJobs, ...]
    histograms: tuple[Histogram, ...]
    routed: tuple[RoutedJobs, ...] = ()
    slo: tuple[SloCount, ...] = ()
