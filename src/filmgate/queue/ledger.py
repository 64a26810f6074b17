"""The accounts that share out the GPU: who waits, who runs, who has had how much.

Fair share is start-time fair queueing. An account's virtual time grows by predicted GPU-seconds over weight
with every job it starts; the account with the least is served next. An account that wakes up joins at the
present (the least virtual time among those waiting): idling saves nothing up, and a first job waits for
nobody's backlog. On PostgreSQL the account's row is the lock of all its tenant's transitions, taken first.
"""

from bisect import bisect_left
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from filmgate.database.schema import accounts, durations, loads
from filmgate.errors import QuotaExceeded
from filmgate.jobs import JobState, Reason, Share, TenantId
from filmgate.queue.base import DURATION_BOUNDS
from filmgate.queue.rows import Row

DAY_SECONDS = 86400


def open_account(connection: sa.Connection, tenant_id: TenantId, share: Share) -> Row:
    """The tenant's account, locked, with its share brought up to date."""
    terms = {"weight": share.weight, "max_running": share.max_running}
    statement = (
        _insert(connection, accounts)
        .values(tenant_id=tenant_id, **terms)
        .on_conflict_do_update(index_elements=["tenant_id"], set_=terms)
        .returning(accounts)
    )
    return connection.execute(statement).mappings().one()


def lock_account(connection: sa.Connection, tenant_id: TenantId) -> Row | None:
    """The tenant's account, locked; None when it never had a job."""
    statement = sa.select(accounts).where(accounts.c.tenant_id == tenant_id).with_for_update()
    return connection.execute(statement).mappings().one_or_none()


def check_quotas(account: Row, share: Share, gpu_seconds: float, now: float) -> None:
    """Raises QuotaExceeded when one more job would break the tenant's own limits."""
    if share.max_queued is not None and account["queued"] >= share.max_queued:
        raise QuotaExceeded(
            f"{account['queued']} videos are already queued, the limit is {share.max_queued}",
            quota="max_queued",
            retry_after_seconds=30.0,
        )
    limit = share.max_gpu_seconds_a_day
    if limit is not None and used_today(account, now) + gpu_seconds > limit:
        raise QuotaExceeded(
            f"this video would pass the limit of {limit:g} GPU-seconds a day",
            quota="max_gpu_seconds_a_day",
            retry_after_seconds=DAY_SECONDS - now % DAY_SECONDS,
        )


def used_today(account: Row, now: float) -> float:
    is_today = account["day"] == int(now // DAY_SECONDS)
    return float(account["gpu_seconds_today"]) if is_today else 0.0


def admit(connection: sa.Connection, account: Row, job: Row, now: float) -> None:
    """Count a new queued job and reserve its GPU-seconds."""
    values: dict[str, Any] = {"queued": accounts.c.queued + 1} | _used(
        account, job["predicted_gpu_seconds"], now
    )
    if account["queued"] == 0:
        values["virtual_time"] = max(account["virtual_time"], _present(connection))
    _update(connection, account["tenant_id"], values)
    _count(connection, job, JobState.QUEUED, +1)


def charge(connection: sa.Connection, job: Row) -> None:
    """Move the account forward by the job it is about to start."""
    cost = job["predicted_gpu_seconds"] / accounts.c.weight
    _update(connection, job["tenant_id"], {"virtual_time": accounts.c.virtual_time + cost})


def move(connection: sa.Connection, job: Row, target: JobState) -> None:
    """Count a job in `target` instead of where its row still has it; an end is counted by `tally`."""
    source = JobState(job["state"])
    if source is target:
        return
    values = {source.value: accounts.c[source.value] - 1}
    _count(connection, job, source, -1)
    if not target.is_final:
        values[target.value] = accounts.c[target.value] + 1
        _count(connection, job, target, +1)
    _update(connection, job["tenant_id"], values)


def tally(
    connection: sa.Connection, job: Row, state: JobState, reason: Reason | None, gpu_seconds: float
) -> None:
    """Count an end for good."""
    key = _load_key(job, state) | {"reason": reason or ""}
    _add(connection, loads, key, {"jobs": 1, "gpu_seconds": gpu_seconds})


def observe(connection: sa.Connection, model: str, kind: str, seconds: float) -> None:
    """Count a duration in its bucket."""
    key = {"kind": kind, "model": model, "bucket": bisect_left(DURATION_BOUNDS, seconds)}
    _add(connection, durations, key, {"observations": 1, "seconds": seconds})


def settle(connection: sa.Connection, account: Row, difference: float, now: float) -> None:
    """Correct today's use by the difference between what was reserved and what it took."""
    _update(connection, account["tenant_id"], _used(account, difference, now))


def _used(account: Row, gpu_seconds: float, now: float) -> dict[str, Any]:
    used = max(0.0, used_today(account, now) + gpu_seconds)
    return {"day": int(now // DAY_SECONDS), "gpu_seconds_today": used}


def _present(connection: sa.Connection) -> float:
    waiting = sa.select(sa.func.min(accounts.c.virtual_time)).where(sa.text("queued > 0"))
    everyone = sa.select(sa.func.max(accounts.c.virtual_time))
    for statement in (waiting, everyone):
        if (value := connection.execute(statement).scalar()) is not None:
            return float(value)
    return 0.0


def _update(connection: sa.Connection, tenant_id: str, values: dict[str, Any]) -> None:
    connection.execute(sa.update(accounts).where(accounts.c.tenant_id == tenant_id).values(values))


def _count(connection: sa.Connection, job: Row, state: JobState, change: int) -> None:
    cost = change * job["predicted_gpu_seconds"]
    _add(connection, loads, _load_key(job, state), {"jobs": change, "gpu_seconds": cost})


def _load_key(job: Row, state: JobState) -> dict[str, Any]:
    return {name: job[name] for name in ("tenant_id", "route", "model")} | {"state": state, "reason": ""}


def _add(connection: sa.Connection, table: sa.Table, key: dict[str, Any], change: dict[str, Any]) -> None:
    statement = _insert(connection, table).values(key | change)
    sums = {name: table.c[name] + amount for name, amount in change.items()}
    connection.execute(statement.on_conflict_do_update(index_elements=list(key), set_=sums))


def _insert(connection: sa.Connection, table: sa.Table) -> sqlite.Insert | postgresql.Insert:
    return sqlite.insert(table) if connection.dialect.name == "sqlite" else postgresql.insert(table)
