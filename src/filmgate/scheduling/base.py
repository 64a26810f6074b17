"""Scheduling: the JobQueue port (verbs that change jobs) and the JobReader port (verbs that read them).

Every verb is one transaction on one database and raises QueueUnavailable (retryable) when the database cannot
be reached. All verbs block: call them from a thread, never from an event loop.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from filmgate.audit.records import SYSTEM, Actor
from filmgate.jobs import (
    Clip,
    Failure,
    Idempotency,
    Job,
    JobId,
    Lease,
    Progress,
    Route,
    Routing,
    StageSeconds,
    TenantId,
    Ticket,
    WorkerId,
)
from filmgate.scheduling.records import (
    ALL_JOBS,
    Backlog,
    JobEvent,
    JobFilter,
    Measurement,
    Page,
    Statistics,
)
from filmgate.scheduling.snapshot import Snapshot
from filmgate.settings import WorkerSettings


@dataclass(frozen=True, slots=True)
class Offer:
    """What a worker can lease: jobs of its route and models, except jobs of `excluded` tenants.

    With `tenants` it leases only their jobs. Otherwise it is a shared worker: on a GPU it never leases a
    job of a dedicated tenant.
    `versions` are the digests of the weights by model.
    """

    worker_id: WorkerId
    models: tuple[str, ...]
    route: Route = Route.GPU
    device: str | None = None
    excluded: tuple[TenantId, ...] = ()
    tenants: tuple[TenantId, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)


def read_tenants(settings: WorkerSettings) -> tuple[TenantId, ...]:
    """The only tenants that a worker serves; empty for a shared worker."""
    names = (name.strip() for name in settings.tenants.split(","))
    return tuple(TenantId(name) for name in names if name)


@dataclass(frozen=True, slots=True)
class Provenance:
    """Which GPU of which machine rendered a clip, as far as the worker knows."""

    gpu_uuid: str | None = None
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """The end of a successful attempt: the durable clip, the measured seconds and what rendered it."""

    clip: Clip
    measured: StageSeconds
    provenance: Provenance = Provenance()


@dataclass(frozen=True, slots=True)
class AttemptFailure:
    """The end of a failed attempt.

    `is_retryable` False fails the job. `uses_attempt` False (a drain, a spot reclaim) returns the job to the
    queue after `retry_seconds` without counting the attempt. `routing` moves a job that the provider did not
    render back to local GPUs and records why; a job that the provider was paid for is never moved.
    """

    failure: Failure
    is_retryable: bool = True
    uses_attempt: bool = True
    routing: Routing | None = None
    retry_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """Whether the worker must stop the job at the next step because it was cancelled."""

    is_cancelling: bool


@dataclass(frozen=True, slots=True)
class Move:
    """A new route for a queued job, or a new reason to stay on its route."""

    tenant_id: TenantId
    job_id: JobId
    route: Route
    routing: Routing


class JobQueue(Protocol):
    """The verbs that change a job. Every accepted job reaches COMPLETED or FAILED exactly once.

    Every change writes its audit record in the same transaction; `actor` is who asked for it.
    """

    def enqueue(self, ticket: Ticket, actor: Actor = SYSTEM) -> Job:
        """Accept the ticket; the job is durable when this returns. Idempotent by `ticket.idempotency`: the
        same key, or a retry of the same body within the window, returns the first job, even for concurrent
        callers.

        Raises IdempotencyConflict (same key, different body), QuotaExceeded (queued jobs, GPU-seconds today)
        and BacklogGrown (more work is queued than `ticket.max_backlog_seconds`).
        """
        ...

    def find_duplicate(self, tenant_id: TenantId, idempotency: Idempotency) -> Job | None:
        """The job this request already created, if any. Raises IdempotencyConflict.

        A shortcut that skips admission for retries; `enqueue` decides.
        """
        ...

    def lease(self, offer: Offer) -> Lease | None:
        """Lease the next job to this worker, or return None. No two leases of a job have the same fence.

        Due retries and expired leases come first, then the tenant with the lowest virtual time, its earliest
        deadline first. A job that was handed back with a pause waits for its tenant's turn after it. A job
        whose attempts were all lost with their workers fails with WORKER_LOST. A job whose prompt cannot be
        decrypted goes back to the queue, and this process skips its tenant for a while; it fails with
        KEY_REFUSED when the key is still rejected `queue.key_wait_seconds` after its creation. A job that
        only a newer version can read is skipped until its lease expires.
        """
        ...

    def wait(self, offer: Offer, is_stopping: Callable[[], bool]) -> None:
        """Block until a job may be ready for this worker, for at most one polling interval.

        Returns early when `is_stopping` becomes true.
        """
        ...

    def heartbeat(self, lease: Lease, progress: Progress | None = None) -> HeartbeatReply:
        """Renew the lease and report finished work. The write is not flushed: a crash may lose it.

        Raises LeaseLost when the fence is stale, the job is final or it was removed.
        """
        ...

    def complete(self, lease: Lease, result: AttemptResult) -> Job:
        """Complete a job whose clip is durable in the store. Idempotent for the same lease and clip.

        A job that is being cancelled becomes FAILED/cancelled instead; the returned job shows it.
        Raises LeaseLost when the fence is stale: the caller deletes what it uploaded.
        """
        ...

    def fail_attempt(self, lease: Lease, failed: AttemptFailure) -> Job:
        """End the attempt without a clip: the job is queued again after a backoff, or FAILED.

        Raises LeaseLost when the fence is stale.
        """
        ...

    def cancel(self, tenant_id: TenantId, job_id: JobId, actor: Actor = SYSTEM) -> Job:
        """Cancel the job. A job with a valid lease fails when its worker has stopped, any other immediately.

        Idempotent; a final job is returned unchanged. Raises JobNotFound.
        """
        ...

    def remove(self, tenant_id: TenantId, job_id: JobId, actor: Actor = SYSTEM) -> None:
        """Delete the row and the events of a final job; its audit records stay. Delete its objects in the
        store first.

        Idempotent. Raises JobActive while the job is queued or running.
        """
        ...

    def reroute(self, moves: Sequence[Move]) -> int:
        """Move queued jobs to another route in one transaction. Returns how many moved.

        A running job whose lease has ended is queued again first if it moves to a provider, or fails if it
        was cancelled or has used its attempts. Skips a job that a worker holds, that ended or was removed
        meanwhile, or that a provider already renders. A moved job keeps its deadline and its attempts.
        Idempotent.
        """
        ...

    def close(self) -> None:
        """Close the connections that `wait` keeps open. The queue is not used afterwards."""
        ...


class JobReader(Protocol):
    """The verbs that read jobs. An unknown id and another tenant's id both raise JobNotFound."""

    def find(self, tenant_id: TenantId, job_id: JobId, *, has_prompt: bool = True) -> Job:
        """One job. Raises JobNotFound. Without `has_prompt` nothing is decrypted: `spec.prompt` is ""."""
        ...

    def page(
        self,
        tenant_id: TenantId,
        *,
        after: JobId | None = None,
        limit: int = 20,
        order: Literal["asc", "desc"] = "desc",
        where: JobFilter = ALL_JOBS,
    ) -> Page:
        """A tenant's jobs by age, after the job `after`, which may have been removed meanwhile.

        Raises JobNotFound when `after` is unknown, or its creation is no longer in the audit log.
        """
        ...

    def changes(self, seen: Mapping[JobId, int]) -> Sequence[Job]:
        """The jobs whose revision is newer than the one seen, in one query for all watchers.

        Removed jobs are absent. Prompts are not decrypted: `spec.prompt` is "".
        """
        ...

    def wait(self, seconds: float, is_stopping: Callable[[], bool]) -> None:
        """Block until jobs may have changed since the last call returned, for at most `seconds`.

        Returns early when `is_stopping` becomes true. One thread may wait at a time.
        """
        ...

    def events(self, tenant_id: TenantId, job_id: JobId, *, after: int = 0) -> Sequence[JobEvent]:
        """The events of a job after this revision."""
        ...

    def snapshot(self, *, has_specs: bool = False, limit: int = 2000) -> Snapshot:
        """Everything a forecast needs: queued and running jobs, fair-share accounts and live workers.

        At most about `limit` queued jobs are listed one by one; the rest is summed up per tenant, route and
        model. `has_specs` adds the specs, without prompts, that routing needs.
        """
        ...

    def backlog(self) -> Backlog:
        """Counts of queued and running jobs. The cost grows with tenants and models, not with jobs."""
        ...

    def measurements(self, model: str) -> Sequence[Measurement]:
        """The last hundred jobs of a model that local GPUs completed, newest first, without prompts."""
        ...

    def gpu_seconds_today(self, tenant_id: TenantId) -> float:
        """GPU-seconds that a tenant has used or reserved since midnight UTC."""
        ...

    def expired(self, *, limit: int = 100) -> Sequence[Job]:
        """Final jobs past `expires_at`, oldest first."""
        ...

    def statistics(self, *, max_tenants: int = 0) -> Statistics:
        """Counts and durations of finished jobs. The cost grows with tenants and models, not with jobs.

        Durations are summed over all tenants if there are more than `max_tenants`.
        """
        ...
