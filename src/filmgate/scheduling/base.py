"""Station 4: the JobQueue port (who works on what) and the JobBook port (what is known about jobs).

Both speak to one database; every verb is one transaction and raises QueueUnavailable (retryable) when the
database cannot be reached. All verbs block: call them from a thread, never from an event loop.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from filmgate.jobs import (
    Clip,
    Failure,
    Idempotency,
    Job,
    JobId,
    JobState,
    Lease,
    Progress,
    Reason,
    Route,
    RouteReason,
    Routing,
    Stage,
    StageSeconds,
    TenantId,
    Ticket,
    VideoSpec,
    WorkerId,
)
from filmgate.scheduling.waiting import Line, Move


@dataclass(frozen=True, slots=True)
class Offer:
    """What a worker can take: its route and the models it serves."""

    worker_id: WorkerId
    models: tuple[str, ...]
    route: Route = Route.GPU
    device: str | None = None


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of a good attempt: the durable clip and what it took."""

    clip: Clip
    measured: StageSeconds


@dataclass(frozen=True, slots=True)
class Setback:
    """The end of a bad attempt.

    `is_retryable` False ends the job now. `counts` False (a drain, a spot reclaim) gives the attempt back:
    the job returns to the queue at once and loses nothing. `routing` sends a job that a provider would not or
    could not render home to our GPUs, with the reason; what a provider was paid for never is.
    """

    failure: Failure
    is_retryable: bool = True
    counts: bool = True
    routing: Routing | None = None


@dataclass(frozen=True, slots=True)
class Standing:
    """What a heartbeat tells the worker: stop at the next step if the job is being cancelled."""

    is_cancelling: bool


@dataclass(frozen=True, slots=True)
class Load:
    """Jobs of one tenant, route, model and state, and the GPU-seconds predicted for them."""

    tenant_id: TenantId
    route: Route
    model: str
    state: JobState
    jobs: int
    gpu_seconds: float


@dataclass(frozen=True, slots=True)
class Presence:
    """A worker that asked for work within the hour, and how long ago it was last heard of."""

    worker_id: WorkerId
    route: Route
    models: tuple[str, ...]
    silent_seconds: float


@dataclass(frozen=True, slots=True)
class Backlog:
    """What waits, what runs and who works, right now; `oldest_queued_at` is None when nothing waits."""

    loads: tuple[Load, ...]
    oldest_queued_at: float | None
    workers: tuple[Presence, ...] = ()

    @property
    def queued_jobs(self) -> int:
        return sum(load.jobs for load in self.loads if load.state is JobState.QUEUED)

    @property
    def running_jobs(self) -> int:
        return sum(load.jobs for load in self.loads if load.state is JobState.RUNNING)

    def queued_gpu_seconds(self, route: Route | None = None, model: str | None = None) -> float:
        return sum(
            load.gpu_seconds
            for load in self.loads
            if load.state is JobState.QUEUED and route in (None, load.route) and model in (None, load.model)
        )


class JobQueue(Protocol):
    """The verbs that move a job. What is accepted here reaches COMPLETED or FAILED, once."""

    def enqueue(self, ticket: Ticket) -> Job:
        """Accept the ticket: durable when this returns. Idempotent by `ticket.idempotency`: the same key, or
        a retry of the same body within the window, returns the first job, even from two callers at once.

        Raises IdempotencyConflict (same key, other body) and QuotaExceeded (queued jobs, GPU-seconds today).
        """
        ...

    def recall(self, tenant_id: TenantId, idempotency: Idempotency) -> Job | None:
        """The job this request has already made, if it says that it may have: nothing that admission would
        ask of a new job is asked of it again. Raises IdempotencyConflict. `enqueue` still has the last word.
        """
        ...

    def lease(self, offer: Offer) -> Lease | None:
        """Take the next job for this worker, or None. Atomic: no two leases of a job carry the same fence.

        Due retries and expired leases first, then the tenant whose share is least used, its earliest
        deadline first. A job whose attempts are used up by lost workers fails here with WORKER_LOST.
        """
        ...

    def heartbeat(self, lease: Lease, progress: Progress | None = None) -> Standing:
        """Keep the lease and report finished work. Cheap: not flushed to disk, a crash may forget it.

        Raises LeaseLost when the fence is stale, the job is final or it was removed.
        """
        ...

    def complete(self, lease: Lease, finish: Finish) -> Job:
        """Acknowledge a clip that is durable in the store. Idempotent for the same lease and clip.

        A job that is being cancelled ends as FAILED/cancelled instead and the answer says so.
        Raises LeaseLost when the fence is stale: the caller removes what it uploaded.
        """
        ...

    def give_up(self, lease: Lease, setback: Setback) -> Job:
        """End the attempt without a clip: queued again after a backoff, or FAILED with the reason.

        Raises LeaseLost when the fence is stale.
        """
        ...

    def cancel(self, tenant_id: TenantId, job_id: JobId) -> Job:
        """Stop the job: a queued one fails at once, a running one is marked and its worker told at the next
        heartbeat. Idempotent; a final job is returned unchanged. Raises JobNotFound.
        """
        ...

    def remove(self, tenant_id: TenantId, job_id: JobId) -> None:
        """Forget a final job: its row and its events, for good. Delete its objects in the store first.

        Idempotent. Raises JobActive while it is queued or running.
        """
        ...

    def reroute(self, moves: Sequence[Move]) -> int:
        """Send waiting jobs to another route, all in one transaction; how many went.

        A job that was leased, ended or removed meanwhile, or that a provider was already asked to render, is
        left alone. A moved job joins its new queue by its deadline and loses no attempt. Idempotent.
        """
        ...

    def backlog(self) -> Backlog:
        """A snapshot of waiting and running work; its cost grows with tenants and models, not with jobs."""
        ...


@runtime_checkable
class Sweepable(Protocol):
    """A queue with something to put right from time to time: wake-ups that were lost on the way."""

    def sweep(self) -> None:
        """Put it right. Cheap, idempotent, for any process at any time. Raises QueueUnavailable."""
        ...


@dataclass(frozen=True, slots=True)
class Page:
    """Some of a tenant's jobs, whether there are more after the last, and where the queued ones stand."""

    jobs: tuple[Job, ...]
    has_more: bool
    positions: Mapping[JobId, int]


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One change of state, stage or route, in order of `revision`; progress inside a stage makes no event.

    `route` and `route_reason` are set where the event moved the job to another route.
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
    """A finished job's shape and what each stage took: what predictions are learned from."""

    spec: VideoSpec
    route: Route
    device: str | None
    measured: StageSeconds
    finished_at: float


@dataclass(frozen=True, slots=True)
class Usage:
    """GPU-seconds a tenant has used or reserved since midnight UTC."""

    tenant_id: TenantId
    gpu_seconds_today: float


@dataclass(frozen=True, slots=True)
class Tally:
    """Jobs that ended, ever, and the GPU-seconds they were measured to take. Only grows."""

    tenant_id: TenantId
    route: Route
    model: str
    state: JobState
    reason: Reason | None
    jobs: int
    gpu_seconds: float


@dataclass(frozen=True, slots=True)
class RouteTally:
    """Decisions on routes, ever; staying home as a matter of course is not counted. Only grows."""

    tenant_id: TenantId
    route: Route
    model: str
    reason: RouteReason
    jobs: int


@dataclass(frozen=True, slots=True)
class Histogram:
    """How long something took (`wait`, `total` or a stage): a count for each of DURATION_BOUNDS and above."""

    kind: str
    model: str
    counts: tuple[int, ...]
    seconds: float


DURATION_BOUNDS = (
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    20.0,
    30.0,
    60.0,
    90.0,
    120.0,
    300.0,
    600.0,
    1800.0,
    3600.0,
)


@dataclass(frozen=True, slots=True)
class Statistics:
    """The history of the whole service, counted in the transactions that made it: exact after any crash."""

    tallies: tuple[Tally, ...]
    histograms: tuple[Histogram, ...]
    routings: tuple[RouteTally, ...] = ()


class JobBook(Protocol):
    """The verbs that only read. A foreign id and an unknown id are the same JobNotFound."""

    def find(self, tenant_id: TenantId, job_id: JobId) -> Job:
        """The job, or JobNotFound."""
        ...

    def page(
        self,
        tenant_id: TenantId,
        *,
        after: JobId | None = None,
        limit: int = 20,
        order: Literal["asc", "desc"] = "desc",
    ) -> Page:
        """A tenant's jobs by age. `after` is the last id of the page before; JobNotFound when unknown."""
        ...

    def changes(self, seen: Mapping[JobId, int]) -> Sequence[Job]:
        """Those of the watched jobs whose revision is newer than the one seen: one query for all watchers.

        A job that was removed is absent; use `find` to tell. Prompts are not opened: `spec.prompt` is "".
        """
        ...

    def events(self, tenant_id: TenantId, job_id: JobId, *, after: int = 0) -> Sequence[JobEvent]:
        """What happened to a job after this revision, for replay and audit."""
        ...

    def position(self, tenant_id: TenantId, job_id: JobId) -> int | None:
        """How many queued jobs of the same route and model have an earlier deadline, plus one; None once
        it has left the queue. An estimate: fair share may move it. Counting stops at 1,000.
        """
        ...

    def waiting(self, route: Route, *, limit: int = 20_000) -> Line:
        """Jobs queued on a route, earliest deadline first, without those a provider was asked to render."""
        ...

    def measurements(self, model: str, *, limit: int = 100) -> Sequence[Measurement]:
        """The most recent finished jobs of a model, newest first, without their prompts."""
        ...

    def usage(self, tenant_id: TenantId) -> Usage:
        """What a tenant has used today."""
        ...

    def expired(self, *, limit: int = 100) -> Sequence[Job]:
        """Final jobs past `expires_at`, oldest first, for retention."""
        ...

    def statistics(self) -> Statistics:
        """What ended and how long it took; its cost grows with tenants and models, not with jobs."""
        ...
