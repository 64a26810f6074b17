"""The queue at one moment, as values: what a forecast starts from.

Reading it takes index seeks per tenant, route and model, never the whole backlog.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import repeat

import sqlalchemy as sa

from filmgate.database.schema import accounts, invocations, job_counts, jobs
from filmgate.jobs import JobId, JobState, Route, RouteReason, StageSeconds, TenantId, VideoSpec, WorkerId
from filmgate.scheduling.rows import (
    Row,
    is_paused,
    ready_heads,
    seconds_until_due,
    to_predicted,
    to_routing,
    to_spec,
)
from filmgate.scheduling.workers import WorkerStatus, read_alive

# At least this many jobs per tenant, route and model are listed one by one.
_MIN_LISTED = 50
# The measured pace of a running job replaces the prediction once this share of it is done.
_PACE_FROM = 0.2
# A provider was asked to render these jobs: routing must not move them.
IS_AT_PROVIDER = sa.and_(
    sa.text("jobs.route = 'managed'"),
    sa.exists().where(invocations.c.job_seq == jobs.c.seq, invocations.c.state.not_in(["failed", "closed"])),
)
_COLUMNS = tuple(
    jobs.c[name]
    for name in (
        "id", "tenant_id", "route", "model", "state", "seq", "created_at", "deadline_at", "started_at",
        "wake_at", "wake_set_at", "worker_id", "fraction", "predicted_gpu_seconds", "predicted", "routing",
        "attempt", "fence",
    )
)  # fmt: skip
_QUEUED = sa.select(job_counts).where(
    job_counts.c.state == JobState.QUEUED.value, job_counts.c.reason == "", job_counts.c.jobs > 0
)
_DEDICATED = sa.select(accounts.c.tenant_id).where(sa.text("is_dedicated"))
# An idle tenant joins at the lowest virtual time of those waiting, unless its own is higher.
_LOWEST = sa.select(sa.func.min(accounts.c.virtual_time)).where(sa.text("queued > 0")).scalar_subquery()
_ACCOUNTS = sa.select(accounts).where(
    sa.or_(accounts.c.queued > 0, accounts.c.running > 0, accounts.c.virtual_time > _LOWEST)
)
_WOKEN = sa.select(*_COLUMNS).where(sa.text("jobs.wake_at IS NOT NULL")).order_by(jobs.c.wake_at)
_HEADS = ready_heads(*_COLUMNS)
_SPECS = (jobs.c.spec, IS_AT_PROVIDER.label("is_at_provider"))
# Jobs of one shape have one prediction: a snapshot holds few different ones.
_to_predicted = lru_cache(maxsize=1024)(to_predicted)


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A queued job. `busy_seconds` is how long it occupies a worker, `share_seconds` what its tenant pays.

    `ready_in` is set for a job that waits: the seconds until its backoff, pause or lost lease is over. After
    that it bypasses fair share, unless it `is_paused`.
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
    is_paused: bool = False
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
    """A job on a live worker. `free_in` is when it stops occupying the worker, `ends_in` when it is done.

    A GPU worker leases the next job while it decodes one and stores another: each occupies it in turn.
    """

    job_id: JobId
    tenant_id: TenantId
    route: Route
    worker_id: WorkerId
    free_in: float
    ends_in: float


@dataclass(frozen=True, slots=True)
class Account:
    """A tenant's fair-share account."""

    weight: float = 1.0
    virtual_time: float = 0.0
    running: int = 0
    max_running: int | None = None

    @property
    def has_room(self) -> bool:
        """Whether the tenant may run one more job."""
        return self.max_running is None or self.running < self.max_running


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Queued and running jobs, fair-share accounts and live workers. `now` is in Unix seconds.

    `accounts` has the tenants with open jobs, and those that would be served later than one of them.
    """

    now: float
    queued: tuple[QueuedJob, ...] = ()
    tails: tuple[Tail, ...] = ()
    running: tuple[RunningJob, ...] = ()
    accounts: Mapping[TenantId, Account] = field(default_factory=dict)
    workers: tuple[WorkerStatus, ...] = ()
    dedicated: frozenset[TenantId] = frozenset()  # tenants that shared GPU workers never serve

    def joined_virtual_time(self, tenant_id: TenantId) -> float:
        """The tenant's virtual time after a new job, as `fair_share.admit` sets it."""
        own = self.accounts.get(tenant_id, Account()).virtual_time
        waiting = {job.tenant_id for job in self.queued if not job.was_running}
        waiting |= {tail.tenant_id for tail in self.tails}
        if tenant_id in waiting:
            return own
        is_dedicated = tenant_id in self.dedicated
        alike = {
            tenant: account
            for tenant, account in self.accounts.items()
            if (tenant in self.dedicated) is is_dedicated
        }
        ready = (alike[tenant].virtual_time for tenant in waiting & alike.keys() if alike[tenant].has_room)
        highest = max((account.virtual_time for account in alike.values()), default=own)
        return max(own, min(ready, default=highest))


def read_snapshot(
    connection: sa.Connection, now: float, steady_now: float, *, has_specs: bool, limit: int
) -> Snapshot:
    """The queue as it is, with at most about `limit` jobs listed one by one."""
    workers = tuple(read_alive(connection, steady_now))
    alive = {worker.worker_id: worker for worker in workers}
    queued: list[QueuedJob] = []
    running: defaultdict[WorkerId, list[RunningJob]] = defaultdict(list)
    woken = _WOKEN.add_columns(*_SPECS) if has_specs else _WOKEN
    for row in connection.execute(woken).mappings():
        worker = alive.get(row["worker_id"]) if row["state"] == JobState.RUNNING else None
        ready_in = seconds_until_due(row, steady_now)
        if worker is not None and ready_in > 0:
            running[worker.worker_id].append(_to_running(row, now, worker.speed))
        else:
            queued.append(_to_queued(row, ready_in=ready_in))
    listed, tails = _read_lanes(connection, queued, has_specs=has_specs, limit=limit)
    return Snapshot(
        now=now,
        queued=(*queued, *listed),
        tails=tuple(tails),
        running=tuple(job for name, held in running.items() for job in _in_turn(held, alive[name].capacity)),
        accounts={
            TenantId(row["tenant_id"]): _to_account(row) for row in connection.execute(_ACCOUNTS).mappings()
        },
        dedicated=frozenset(connection.execute(_DEDICATED).scalars()),
        # A draining worker finishes its job and leases no other.
        workers=tuple(worker for worker in workers if not worker.is_draining),
    )


def _read_lanes(
    connection: sa.Connection, woken: list[QueuedJob], *, has_specs: bool, limit: int
) -> tuple[list[QueuedJob], list[Tail]]:
    lanes = connection.execute(_QUEUED).mappings().all()
    most = max(limit // max(len(lanes), 1), _MIN_LISTED)
    statement = _HEADS.add_columns(*_SPECS) if has_specs else _HEADS
    listed: list[QueuedJob] = []
    tails: list[Tail] = []
    for lane in lanes:
        place = {"own": lane["tenant_id"], "route": lane["route"], "model": lane["model"], "most": most}
        heads = [_to_queued(row) for row in connection.execute(statement, place).mappings()]
        listed += heads
        tails += _to_tail(lane, heads, woken)
    return listed, tails


def _to_tail(lane: Row, heads: list[QueuedJob], woken: list[QueuedJob]) -> Iterator[Tail]:
    key = (lane["tenant_id"], lane["route"], lane["model"])
    backing_off = [
        job for job in woken if not job.was_running and (job.tenant_id, job.route, job.model) == key
    ]
    rest = lane["jobs"] - len(heads) - len(backing_off)
    if rest > 0:
        seconds = lane["gpu_seconds"] - sum(job.share_seconds for job in (*heads, *backing_off))
        yield Tail(TenantId(key[0]), Route(key[1]), key[2], rest, max(seconds, 0.0))


def _to_queued(row: Row, ready_in: float | None = None) -> QueuedJob:
    routing, route = to_routing(row["routing"]), Route(row["route"])
    predicted = _to_predicted(row["predicted"])
    is_at_provider = row.get("is_at_provider", False)
    return QueuedJob(
        job_id=JobId(row["id"]),
        tenant_id=TenantId(row["tenant_id"]),
        route=route,
        model=row["model"],
        busy_seconds=job_seconds(route, predicted, routing.expected_seconds)[0],
        share_seconds=row["predicted_gpu_seconds"],
        deadline_at=row["deadline_at"],
        seq=row["seq"],
        upload_seconds=predicted.upload,
        created_at=row["created_at"],
        reason=routing.reason,
        ready_in=ready_in,
        was_running=row["state"] == JobState.RUNNING,
        is_paused=ready_in is not None and is_paused(row),
        spec=to_spec(row["spec"]) if "spec" in row and not is_at_provider else None,
    )


def _to_running(row: Row, now: float, speed: float) -> RunningJob:
    predicted, route, fraction = _to_predicted(row["predicted"]), Route(row["route"]), row["fraction"]
    whole = sum(job_seconds(route, predicted, to_routing(row["routing"]).expected_seconds)) / speed
    # Without progress it was leased and has not started yet.
    elapsed = now - row["started_at"] if fraction is not None else 0.0
    ends_in = remaining_seconds(whole, elapsed, fraction)
    return RunningJob(
        job_id=JobId(row["id"]),
        tenant_id=TenantId(row["tenant_id"]),
        route=route,
        worker_id=WorkerId(row["worker_id"]),
        free_in=max(ends_in - predicted.upload, 0.0),
        ends_in=ends_in,
    )


def _in_turn(held: list[RunningJob], capacity: int) -> list[RunningJob]:
    """The jobs of one worker. Those beyond its capacity wait for the ones that are done first."""
    jobs = sorted(held, key=lambda job: job.free_in)
    for place in range(max(capacity, 1), len(jobs)):
        wait, job = jobs[place - max(capacity, 1)].free_in, jobs[place]
        jobs[place] = replace(job, free_in=job.free_in + wait, ends_in=job.ends_in + wait)
    return jobs


def job_seconds(route: Route, predicted: StageSeconds, provider_seconds: float | None) -> tuple[float, float]:
    """How long a job occupies a worker of its route, and how much longer it takes until its clip is ready."""
    if route is Route.MANAGED and provider_seconds is not None:
        return provider_seconds, 0.0
    return predicted.gpu_seconds, predicted.load + predicted.upload


def remaining_seconds(whole: float, elapsed: float, fraction: float | None) -> float:
    """Seconds until a running job is done: by its own pace once that is known, by the prediction before."""
    has_pace = fraction is not None and fraction >= _PACE_FROM
    expected = elapsed / fraction if has_pace and fraction else max(whole, elapsed)
    return max(expected - elapsed, 0.0)


def _to_account(row: Row) -> Account:
    return Account(row["weight"], row["virtual_time"], row["running"], row["max_running"])
