"""The accounts that share out the GPU: who waits, who runs, who has had how much.

Fair share is start-time fair queueing. An account's virtual time grows by predicted GPU-seconds over weight
with every job it starts; the account with the least is served next. An account that wakes up joins at the
present (the least virtual time among those waiting): idling saves nothing up, and a first job waits for
nobody's backlog. On PostgreSQL the account's row is the lock of all its tenant's transitions, taken first.
"""

from bisect import bisect_left
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from filmgate.database.prepared import Prepared
from filmgate.database.schema import accounts, durations, loads
from filmgate.errors import QuotaExceeded
from filmgate.jobs import JobState, Reason, RouteReason, Share, TenantId
from filmgate.scheduling.base import DURATION_BOUNDS
from filmgate.scheduling.rows import Row

DAY_SECONDS = 86400
ROUTED = "routed"

# Statements are built once: building one costs more than the database takes to run it.
_INSERTS: dict[str, Callable[[sa.Table], sqlite.Insert | postgresql.Insert]] = {
    "sqlite": sqlite.insert,
    "postgresql": postgresql.insert,
}
_OWN = accounts.c.tenant_id == sa.bindparam("own")
_LOCK = sa.select(accounts).where(_OWN).with_for_update()
_ADMIT = Prepared(
    sa.update(accounts)
    .where(_OWN)
    .values(
        queued=accounts.c.queued + 1,
        virtual_time=sa.bindparam("start"),
        day=sa.bindparam("today"),
        gpu_seconds_today=sa.bindparam("used"),
    )
)
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
_SETTLE = (
    sa.update(accounts).where(_OWN).values(day=sa.bindparam("today"), gpu_seconds_today=sa.bindparam("used"))
)
_PRESENTS = (
    sa.select(sa.func.min(accounts.c.virtual_time)).where(sa.text("queued > 0")),
    sa.select(sa.func.max(accounts.c.virtual_time)),
)


def _open_statement(dialect: str) -> sa.Executable:
    statement = _INSERTS[dialect](accounts)
    terms = {"weight": statement.excluded.weight, "max_running": statement.excluded.max_running}
    return statement.on_conflict_do_update(index_elements=["tenant_id"], set_=terms).returning(accounts)


def _add_statement(dialect: str, table: sa.Table, *sums: str) -> sa.Executable:
    statement = _INSERTS[dialect](table)
    grown = {name: table.c[name] + statement.excluded[name] for name in sums}
    return statement.on_conflict_do_update(index_elements=list(table.primary_key.columns), set_=grown)


_OPEN = Prepared({dialect: _open_statement(dialect) for dialect in _INSERTS})
_ADD_LOAD = Prepared({dialect: _add_statement(dialect, loads, "jobs", "gpu_seconds") for dialect in _INSERTS})
_OBSERVE = {dialect: _add_statement(dialect, durations, "observations", "seconds") for dialect in _INSERTS}


def open_account(connection: sa.Connection, tenant_id: TenantId, share: Share) -> Row:
    """The tenant's account, locked, with its share brought up to date."""
    terms = {"tenant_id": tenant_id, "weight": share.weight, "max_running": share.max_running}
    account = _OPEN.first(connection, terms)
    assert account is not None, "an upsert returns its row"
    return account


def lock_account(connection: sa.Connection, tenant_id: TenantId) -> Row | None:
    """The tenant's account, locked; None when it never had a job."""
    return connection.execute(_LOCK, {"own": tenant_id}).mappings().one_or_none()


def check_quotas(account: Row, share: Share, gpu_seconds: float, now: float) -> None:
    """Raises QuotaExceeded when one more job would break the tenant's own limits."""
    if share.max_queued is not None and account["queued"] >= share.max_queued:
        raise QuotaExceeded(
            f"{account['queued']} videos are already queued, the limit is {share.max_queued}",
            quota="max_queued",
            retry_after_seconds=30.0,
        )
    limit = share.max_gpu_seconds_per_day
    if limit is not None and used_today(account, now) + gpu_seconds > limit:
        raise QuotaExceeded(
            f"this video would pass the limit of {limit:g} GPU-seconds a day",
            quota="max_gpu_seconds_per_day",
            retry_after_seconds=DAY_SECONDS - now % DAY_SECONDS,
        )


def used_today(account: Row, now: float) -> float:
    is_today = account["day"] == int(now // DAY_SECONDS)
    return float(account["gpu_seconds_today"]) if is_today else 0.0


def admit(connection: sa.Connection, account: Row, job: Row, now: float) -> None:
    """Count a new queued job and reserve its GPU-seconds."""
    start = account["virtual_time"]
    if account["queued"] == 0:
        start = max(start, _present(connection))
    values = _used(account, job["predicted_gpu_seconds"], now) | {"own": account["tenant_id"], "start": start}
    _ADMIT.run(connection, values)
    _count(connection, job, JobState.QUEUED, +1)


def charge(connection: sa.Connection, job: Row) -> None:
    """Move the account forward by the job it is about to start."""
    connection.execute(_CHARGE, {"own": job["tenant_id"], "cost": job["predicted_gpu_seconds"]})


def move(connection: sa.Connection, job: Row, target: JobState) -> None:
    """Count a job in `target` instead of where its row still has it; an end is counted by `tally`."""
    source = JobState(job["state"])
    if source is target:
        return
    _count(connection, job, source, -1)
    if not target.is_final:
        _count(connection, job, target, +1)
    change = {f"more_{state}": (state is target) - (state is source) for state in _OPEN_STATES}
    connection.execute(_ADJUST, change | {"own": job["tenant_id"]})


_OPEN_STATES = (JobState.QUEUED, JobState.RUNNING)


def tally(
    connection: sa.Connection, job: Row, state: JobState, reason: Reason | None, gpu_seconds: float
) -> None:
    """Count an end for good."""
    load = _load_key(job, state) | {"reason": reason or "", "jobs": 1, "gpu_seconds": gpu_seconds}
    _ADD_LOAD.run(connection, load)


def routed_lane(job: Row, route: str, reason: RouteReason) -> dict[str, Any]:
    """Where a decision on a route is counted: beside the jobs, under a state that no job is ever in."""
    own = {"tenant_id": job["tenant_id"], "route": route, "model": job["model"]}
    return own | {"state": ROUTED, "reason": reason.value}


def add_load(connection: sa.Connection, lane: dict[str, Any], count: int, gpu_seconds: float) -> None:
    """Count this many jobs more, or fewer, in a lane."""
    load = lane | {"jobs": count, "gpu_seconds": gpu_seconds}
    _ADD_LOAD.run(connection, load)


def observe(connection: sa.Connection, model: str, kind: str, seconds: float) -> None:
    """Count a duration in its bucket."""
    bucket = bisect_left(DURATION_BOUNDS, seconds)
    values = {"kind": kind, "model": model, "bucket": bucket, "observations": 1, "seconds": seconds}
    connection.execute(_OBSERVE[connection.dialect.name], values)


def settle(connection: sa.Connection, account: Row, difference: float, now: float) -> None:
    """Correct today's use by the difference between what was reserved and what it took."""
    connection.execute(_SETTLE, _used(account, difference, now) | {"own": account["tenant_id"]})


def _used(account: Row, gpu_seconds: float, now: float) -> dict[str, Any]:
    used = max(0.0, used_today(account, now) + gpu_seconds)
    return {"today": int(now // DAY_SECONDS), "used": used}


def _present(connection: sa.Connection) -> float:
    for statement in _PRESENTS:
        if (value := connection.execute(statement).scalar()) is not None:
            return float(value)
    return 0.0


def _count(connection: sa.Connection, job: Row, state: JobState, change: int) -> None:
    load = {"jobs": change, "gpu_seconds": change * job["predicted_gpu_seconds"]}
    _ADD_LOAD.run(connection, _load_key(job, state) | load)


def _load_key(job: Row, state: JobState) -> dict[str, Any]:
    return {name: job[name] for name in ("tenant_id", "route", "model")} | {"state": state, "reason": ""}
