"""Moves queued jobs to another route, all in one transaction."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import sqlalchemy as sa

from filmgate.audit.chain import append
from filmgate.database.schema import accounts, events, jobs
from filmgate.jobs import JobState, Route, RouteReason, TenantId
from filmgate.scheduling import fair_share
from filmgate.scheduling.base import Move
from filmgate.scheduling.rows import IS_DUE, Row, from_routing
from filmgate.scheduling.snapshot import IS_AT_PROVIDER
from filmgate.scheduling.transitions import moved_entry

if TYPE_CHECKING:
    from filmgate.audit.records import Entry

_LOCK_ACCOUNTS = (
    sa.select(accounts.c.tenant_id)
    .where(accounts.c.tenant_id.in_(sa.bindparam("tenants", expanding=True)))
    .order_by(accounts.c.tenant_id)
    .with_for_update()
)
_FIND_LOST = (
    sa.select(jobs)
    .where(
        sa.text("jobs.wake_at IS NOT NULL AND jobs.state = 'running' AND jobs.route = 'gpu'"),
        IS_DUE,
        jobs.c.tenant_id.in_(sa.bindparam("tenants", expanding=True)),
    )
    .order_by(jobs.c.seq)
    .with_for_update()
)
_COLUMNS = ("seq", "id", "tenant_id", "route", "model", "revision", "attempt", "predicted_gpu_seconds")
_FIND = sa.select(*(jobs.c[name] for name in _COLUMNS)).where(
    jobs.c.id.in_(sa.bindparam("ids", expanding=True)),
    sa.text("jobs.state = 'queued'"),
    sa.not_(IS_AT_PROVIDER),
)
_REASON = sa.update(jobs).where(jobs.c.seq == sa.bindparam("the_seq")).values(routing=sa.bindparam("why"))
_MOVE = _REASON.values(
    route=sa.bindparam("target"), revision=jobs.c.revision + 1, wake_at=None, wake_set_at=None
)


def lock_accounts(connection: sa.Connection, moves: Sequence[Move]) -> None:
    """All of them at once and in order: two transactions that move jobs cannot wait for each other."""
    connection.execute(_LOCK_ACCOUNTS, {"tenants": sorted({move.tenant_id for move in moves})}).all()


def lock_lost(connection: sa.Connection, moves: Sequence[Move], steady_now: float) -> Sequence[Row]:
    """The running jobs whose lease has ended and that leave the local GPUs, locked after their accounts."""
    leaving = {move.job_id: move.tenant_id for move in moves if move.route is not Route.GPU}
    if not leaving:
        return ()
    tenants = {"tenants": sorted(set(leaving.values()))}
    found = connection.execute(_FIND_LOST, tenants | {"steady_now": steady_now}).mappings()
    return [row for row in found if row["id"] in leaving]


def move_jobs(connection: sa.Connection, moves: Sequence[Move], now: float) -> int:
    """Apply the moves whose jobs are still queued. Returns how many jobs changed their route.

    Locks the accounts first, in order. A lease locks its tenant's account too, so a job is either leased
    before (and not found here) or moved before (and not found there).
    """
    by_id = {move.job_id: move for move in moves}
    lock_accounts(connection, moves)
    pairs = [(row, by_id[row["id"]]) for row in connection.execute(_FIND, {"ids": list(by_id)}).mappings()]
    staying = [(row, move) for row, move in pairs if row["route"] == move.route]
    moving = [(row, move) for row, move in pairs if row["route"] != move.route]
    if staying:
        reasons = [{"the_seq": row["seq"], "why": from_routing(move.routing)} for row, move in staying]
        connection.execute(_REASON, reasons)
    if moving:
        _write(connection, moving, now)
    _count(connection, pairs)
    return len(moving)


def _write(connection: sa.Connection, moving: Sequence[tuple[Row, Move]], now: float) -> None:
    """The new routes with their events and audit records."""
    changes = [
        {"the_seq": row["seq"], "target": move.route, "why": from_routing(move.routing)}
        for row, move in moving
    ]
    notes = [
        {
            "job_seq": row["seq"],
            "revision": row["revision"] + 1,
            "at": now,
            "state": JobState.QUEUED,
            "attempt": row["attempt"],
            "route": move.route,
            "route_reason": move.routing.reason,
        }
        for row, move in moving
    ]
    connection.execute(_MOVE, changes)
    connection.execute(sa.insert(events), notes)
    entries: defaultdict[TenantId, list[Entry]] = defaultdict(list)
    for row, move in moving:
        entries[move.tenant_id].append(moved_entry(row, move))
    # In the order of tenants, as the accounts: two moves cannot wait for each other's chains.
    for tenant_id in sorted(entries):
        append(connection, tenant_id, entries[tenant_id], now)


def _count(connection: sa.Connection, pairs: Sequence[tuple[Row, Move]]) -> None:
    """Count moved jobs on their new route instead of the old one, and every decision but the default."""
    jobs_by_key: Counter[tuple[str, ...]] = Counter()
    seconds: defaultdict[tuple[str, ...], float] = defaultdict(float)
    for row, move in pairs:
        reason = move.routing.reason
        changes: list[tuple[int, str, str, str]] = []
        if row["route"] != move.route:
            changes = [(-1, row["route"], JobState.QUEUED, ""), (+1, move.route, JobState.QUEUED, "")]
        if reason is not RouteReason.DEFAULT:
            changes.append((+1, move.route, fair_share.ROUTED, reason))
        for sign, *counted in changes:
            key = (row["tenant_id"], row["model"], *counted)
            jobs_by_key[key] += sign
            seconds[key] += sign * row["predicted_gpu_seconds"]
    for key, number in jobs_by_key.items():
        named = dict(zip(("tenant_id", "model", "route", "state", "reason"), key, strict=True))
        fair_share.count(connection, named | {"version": ""}, number, seconds[key])
