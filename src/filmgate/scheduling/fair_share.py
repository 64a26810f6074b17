"""Fair share: which tenant is served next, its quotas, and the counters of its jobs.

Start-time fair queueing: a tenant's virtual time grows by predicted GPU-seconds over weight with every job it
starts, and the tenant with the lowest virtual time is served next. A tenant without queued jobs joins at the
lowest virtual time among those waiting: it cannot save up idle time, and a first job does not wait for
another tenant's backlog. A tenant that may not run more jobs falls behind the others, so it is not one of
those. On PostgreSQL, every transition of a job locks its tenant's account row first.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import sqlalchemy as sa

from filmgate.database.schema import accounts, job_counts, tenants
from filmgate.database.upserts import add_up, insert_for
from filmgate.errors import BacklogGrown, QuotaExceeded
from filmgate.jobs import JobState, Reason, Route, Share, TenantId, Ticket
from filmgate.scheduling.rows import Row, to_routing

DAY_SECONDS = 86400
# Routing decisions are counted in the same table, under a state that no job has.
ROUTED = "routed"
_OPEN_STATES = (JobState.QUEUED, JobState.RUNNING)

_OWN = accounts.c.tenant_id == sa.bindparam("own")
_LOCK = sa.select(accounts).where(_OWN).with_for_update()
_IS_REGISTERED = sa.exists().where(tenants.c.id == accounts.c.tenant_id)
# Adds to today's use, which begins at zero each day and never falls below it.
_TODAY: sa.BindParameter[int] = sa.bindparam("today", type_=sa.BigInteger)
_USED = sa.case((accounts.c.day == _TODAY, accounts.c.gpu_seconds_today), else_=0.0) + sa.bindparam("more")
_USE = (
    sa.update(accounts)
    .where(_OWN)
    .values(day=_TODAY, gpu_seconds_today=sa.case((_USED > 0, _USED), else_=0.0))
)
_ADMIT = _USE.values(queued=accounts.c.queued + 1, virtual_time=sa.bindparam("start"))
_ADJUST = (
    sa.update(accounts)
    .where(_OWN)
    .values(
        queued=accounts.c.queued + sa.bindparam("more_queued"),
        running=accounts.c.running + sa.bindparam("more_running"),
    )
)
_CHARGE = (
    sa.update(accounts)
    .where(_OWN)
    .values(virtual_time=accounts.c.virtual_time + sa.bindparam("cost") / accounts.c.weight)
)
# Whether the tenant may run one more job.
HAS_ROOM = sa.or_(accounts.c.max_running.is_(None), accounts.c.running < accounts.c.max_running)
# The lowest virtual time among those waiting for a worker; if no tenant does, the highest of all. Dedicated
# tenants wait for other workers, so they are compared only with each other.
_IS_ALIKE = accounts.c.is_dedicated == sa.bindparam("is_dedicated")
_VIRTUAL_NOW = (
    sa.select(sa.func.min(accounts.c.virtual_time)).where(sa.text("queued > 0"), HAS_ROOM, _IS_ALIKE),
    sa.select(sa.func.max(accounts.c.virtual_time)).where(_IS_ALIKE),
)
_BACKLOG = sa.select(sa.func.sum(job_counts.c.gpu_seconds)).where(
    job_counts.c.route == Route.GPU.value, job_counts.c.state == JobState.QUEUED.value
)
_OWN_BACKLOG = _BACKLOG.where(job_counts.c.tenant_id == sa.bindparam("own"))
_SHARED_BACKLOG = _BACKLOG.where(
    job_counts.c.tenant_id.not_in(sa.select(accounts.c.tenant_id).where(sa.text("is_dedicated")))
)
_LOCK_BACKLOG = sa.select(sa.func.pg_advisory_xact_lock(0x6261636B))  # "back"
# More transactions than run in parallel: this many jobs may join the backlog between a check and its commit.
_MAX_CONCURRENT = 64


@dataclass(frozen=True, slots=True)
class EndOfJob:
    """How a job ended; `reason` is None for a completed one."""

    at: float
    reason: Reason | None
    gpu_seconds: float
    is_late: bool
    provider_usd: float = 0.0


def open_account(connection: sa.Connection, tenant_id: TenantId, share: Share) -> Row:
    """The tenant's account, locked.

    The registry keeps the weight and the limit of its tenants: those of a request may be older. They count
    only for a tenant that is not registered (any more).
    """
    terms = {"tenant_id": tenant_id, "weight": share.weight, "max_running": share.max_running}
    return connection.execute(_open_statement(connection.dialect.name), terms).mappings().one()


@cache
def _open_statement(dialect: str) -> sa.Executable:
    insert = insert_for(dialect, accounts)
    newest = {
        name: sa.case((_IS_REGISTERED, accounts.c[name]), else_=insert.excluded[name])
        for name in ("weight", "max_running")
    }
    return insert.on_conflict_do_update(index_elements=["tenant_id"], set_=newest).returning(accounts)


def lock_account(connection: sa.Connection, tenant_id: TenantId) -> Row | None:
    """The tenant's account, locked; None if it has none."""
    return connection.execute(_LOCK, {"own": tenant_id}).mappings().one_or_none()


def _check_backlog(connection: sa.Connection, account: Row, ticket: Ticket) -> None:
    if ticket.max_backlog_seconds is None or ticket.route is not Route.GPU:
        return
    waiting = _OWN_BACKLOG if account["is_dedicated"] else _SHARED_BACKLOG
    own = {"own": ticket.tenant_id} if account["is_dedicated"] else {}
    backlog = connection.execute(waiting, own).scalar() or 0.0
    is_near = backlog + _MAX_CONCURRENT * ticket.predicted.gpu_seconds > ticket.max_backlog_seconds
    if is_near and connection.dialect.name == "postgresql":
        # Transactions of other tenants may be adding to the backlog: near the limit, one at a time.
        connection.execute(_LOCK_BACKLOG)
        backlog = connection.execute(waiting, own).scalar() or 0.0
    if backlog > ticket.max_backlog_seconds:
        raise BacklogGrown("the queue is full; try again in a moment", retry_after_seconds=1.0)


def _check_quotas(account: Row, share: Share, gpu_seconds: float, now: float) -> None:
    if share.max_queued is not None and account["queued"] >= share.max_queued:
        raise QuotaExceeded(
            f"{account['queued']} videos are queued; the limit is {share.max_queued}",
            quota="max_queued",
            retry_after_seconds=30.0,
        )
    limit = share.max_gpu_seconds_per_day
    if limit is not None and used_today(account, now) + gpu_seconds > limit:
        raise QuotaExceeded(
            f"this video would exceed the limit of {limit:g} GPU-seconds per day",
            quota="max_gpu_seconds_per_day",
            retry_after_seconds=DAY_SECONDS - now % DAY_SECONDS,
        )


def used_today(account: Row, now: float) -> float:
    return float(account["gpu_seconds_today"]) if account["day"] == _day(now) else 0.0


def _day(now: float) -> int:
    return int(now // DAY_SECONDS)


def admit(connection: sa.Connection, account: Row, ticket: Ticket, job: Row, now: float) -> None:
    """Count a new queued job and its route, and reserve its GPU-seconds.

    Raises QuotaExceeded and BacklogGrown when the job must not be accepted.
    """
    _check_quotas(account, ticket.share, ticket.predicted.gpu_seconds, now)
    _check_backlog(connection, account, ticket)
    start = account["virtual_time"]
    if account["queued"] == 0:
        start = max(start, _virtual_now(connection, is_dedicated=account["is_dedicated"]))
    today = {"today": _day(now), "more": job["predicted_gpu_seconds"]}
    connection.execute(_ADMIT, today | {"own": account["tenant_id"], "start": start})
    _count_open(connection, job, JobState.QUEUED, +1)
    if job["routing"] is not None:
        routed = _key(job, ROUTED) | {"reason": to_routing(job["routing"]).reason}
        count(connection, routed, 1, job["predicted_gpu_seconds"])


def charge(connection: sa.Connection, job: Row, gpu_seconds: float) -> None:
    """Advance the tenant's virtual time; negative seconds are given back."""
    connection.execute(_CHARGE, {"own": job["tenant_id"], "cost": gpu_seconds})


def move(connection: sa.Connection, job: Row, target: JobState) -> None:
    """Count a job in `target` instead of the state in its row. Final states are counted by `count_end`."""
    source = JobState(job["state"])
    if source is target:
        return
    _count_open(connection, job, source, -1)
    if not target.is_final:
        _count_open(connection, job, target, +1)
    change = {f"more_{state}": (state is target) - (state is source) for state in _OPEN_STATES}
    connection.execute(_ADJUST, change | {"own": job["tenant_id"]})


def count_end(connection: sa.Connection, job: Row, end: EndOfJob) -> None:
    """Count a finished job. Corrects today's use, if the job reserved its predicted GPU-seconds today."""
    today = _day(end.at)
    if _day(job["created_at"]) == today:
        more = end.gpu_seconds - job["predicted_gpu_seconds"]
        connection.execute(_USE, {"own": job["tenant_id"], "today": today, "more": more})
    state = JobState.COMPLETED if end.reason is None else JobState.FAILED
    key = _key(job, state) | {"reason": end.reason or "", "version": job["version"] or ""}
    count(connection, key, 1, end.gpu_seconds, end.provider_usd)


def count(
    connection: sa.Connection, key: dict[str, Any], jobs: int, gpu_seconds: float, provider_usd: float = 0.0
) -> None:
    """Add to the counter with this key; negative numbers subtract."""
    sums = {"jobs": jobs, "gpu_seconds": gpu_seconds, "provider_usd": provider_usd}
    add_up(connection, job_counts, key | sums, *sums)


def _virtual_now(connection: sa.Connection, *, is_dedicated: bool) -> float:
    for statement in _VIRTUAL_NOW:
        if (value := connection.execute(statement, {"is_dedicated": is_dedicated}).scalar()) is not None:
            return float(value)
    return 0.0


def _count_open(connection: sa.Connection, job: Row, state: JobState, change: int) -> None:
    count(connection, _key(job, state), change, change * job["predicted_gpu_seconds"])


def _key(job: Row, state: str) -> dict[str, Any]:
    own = {name: job[name] for name in ("tenant_id", "route", "model")}
    return own | {"state": state, "reason": "", "version": ""}
