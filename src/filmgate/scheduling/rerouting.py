"""Moves queued jobs to another route, all in one transaction."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from filmgate.audit.chain import append
from filmgate.database.schema import accounts, events, jobs
from filmgate.jobs import JobState, Route, RouteReason, TenantId
from filmgate.scheduling import auditing, fair_share
from filmgate.scheduling.base import Move
from filmgate.scheduling.ready import IS_DUE, time_terms
from filmgate.scheduling.rows import Row, from_routing
from filmgate.scheduling.snapshot_reader import IS_AT_PROVIDER

if TYPE_CHECKING:
    from filmgate.audit.records import Entry

_IS_QUEUED = sa.text("jobs.state = 'queued'")
_LOCK_ACCOUNTS = (
    sa.select(accounts.c.tenant_id)
    .where(accounts.c.tenant_id.in_(sa.bindparam("tenants", expanding=True)))
    .order_by(accounts.c.tenant_id)
    .with_for_update()
)


def _find_statement(dialect: str) -> sa.Select[Any]:
    """The named jobs that may move. Their accounts are locked, and with them every transition of the jobs."""
    given = sa.bindparam("ids", type_=sa.Text)
    listed = (
        sa.func.json_each(given)
        if dialect == "sqlite"
        else sa.func.json_array_elements_text(sa.cast(given, sa.JSON))
    )
    names = listed.table_valued("value")
    columns = ("seq", "id", "tenant_id", "route", "model", "predicted_gpu_seconds")
    found = sa.select(*(jobs.c[name] for name in columns)).join(names, names.c.value == jobs.c.id)
    return found.where(_IS_QUEUED, sa.not_(IS_AT_PROVIDER))


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


def _list_moves(dialect: str) -> sa.Subquery:
    """The moves as a table: one parameter and one statement for any number of moves."""
    given = sa.bindparam("moves", type_=sa.Text)
    if dialect == "sqlite":
        value = sa.func.json_each(given).table_valued("value").c.value

        def field(place: int) -> sa.ColumnElement[Any]:
            return sa.func.json_extract(value, f"$[{place}]")
    else:
        value = sa.func.json_array_elements(sa.cast(given, sa.JSON)).table_valued("value").c.value

        def field(place: int) -> sa.ColumnElement[Any]:
            return value.op("->>")(place)

    seq, why, reason = sa.cast(field(0), sa.BigInteger), field(1), field(2)
    return sa.select(seq.label("seq"), why.label("why"), reason.label("reason")).subquery("moves")


def _move_statement(dialect: str) -> sa.Update:
    moves = _list_moves(dialect)
    joined = {"route": sa.bindparam("target"), "revision": jobs.c.revision + 1, "wake_at": None}
    joined |= {"routing": moves.c.why, "wake_set_at": None}
    return sa.update(jobs).where(jobs.c.seq == moves.c.seq, _IS_QUEUED).values(joined)


def _reason_statement(dialect: str) -> sa.Update:
    moves = _list_moves(dialect)
    return sa.update(jobs).where(jobs.c.seq == moves.c.seq, _IS_QUEUED).values(routing=moves.c.why)


def _note_statement(dialect: str) -> sa.Insert:
    """An event per moved job, at the revision of the move."""
    moves = _list_moves(dialect)
    at = sa.bindparam("at", type_=sa.Double)
    happened = {
        "job_seq": jobs.c.seq,
        "revision": jobs.c.revision,
        "at": at,
        "state": jobs.c.state,
        "attempt": jobs.c.attempt,
        "route": jobs.c.route,
        "route_reason": moves.c.reason,
    }
    chosen = sa.select(*happened.values()).join(moves, moves.c.seq == jobs.c.seq)
    return sa.insert(events).from_select(list(happened), chosen)


_DIALECTS = ("sqlite", "postgresql")
_FIND = {dialect: _find_statement(dialect) for dialect in _DIALECTS}
_MOVE = {dialect: _move_statement(dialect) for dialect in _DIALECTS}
_REASON = {dialect: _reason_statement(dialect) for dialect in _DIALECTS}
_NOTE = {dialect: _note_statement(dialect) for dialect in _DIALECTS}


def lock_lost(connection: sa.Connection, moves: Sequence[Move], steady_now: float) -> Sequence[Row]:
    """The running jobs among those that leave our GPUs whose lease has ended, locked with their accounts."""
    leaving = {move.job_id: move.tenant_id for move in moves if move.route is not Route.GPU}
    if not leaving:
        return ()
    tenants = {"tenants": sorted(set(leaving.values()))}
    connection.execute(_LOCK_ACCOUNTS, tenants).all()
    found = connection.execute(_FIND_LOST, tenants | time_terms(steady_now)).mappings()
    return [row for row in found if row["id"] in leaving]


def move_jobs(connection: sa.Connection, moves: Sequence[Move], now: float) -> int:
    """Apply the moves whose jobs are still queued. Returns how many jobs changed their route.

    Locks the accounts first, in order. A lease locks its tenant's account too, so a job is either leased
    before (and not found here) or moved before (and not found there).
    """
    by_id = {move.job_id: move for move in moves}
    connection.execute(_LOCK_ACCOUNTS, {"tenants": sorted({move.tenant_id for move in moves})}).all()
    dialect = connection.dialect.name
    found = connection.execute(_FIND[dialect], {"ids": json.dumps(list(by_id))}).mappings()
    pairs = [(row, by_id[row["id"]]) for row in found]
    staying = [(row, move) for row, move in pairs if row["route"] == move.route]
    moving = [(row, move) for row, move in pairs if row["route"] != move.route]
    if staying:
        connection.execute(_REASON[dialect], {"moves": _to_json(staying)})
    for target in {move.route for _, move in moving}:
        those = _to_json([(row, move) for row, move in moving if move.route is target])
        connection.execute(_MOVE[dialect], {"moves": those, "target": target})
        connection.execute(_NOTE[dialect], {"moves": those, "at": now})
    if moving:
        _shift(connection, moving)
        _audit(connection, moving, now)
    _count_decisions(connection, pairs)
    return len(moving)


def _audit(connection: sa.Connection, moving: Sequence[tuple[Row, Move]], now: float) -> None:
    entries: defaultdict[TenantId, list[Entry]] = defaultdict(list)
    for row, move in moving:
        entries[move.tenant_id].append(auditing.moved(row, move))
    # In the order of tenants, as the accounts: two moves cannot wait for each other's chains.
    for tenant_id in sorted(entries):
        append(connection, tenant_id, entries[tenant_id], now)


def _to_json(pairs: Sequence[tuple[Row, Move]]) -> str:
    return json.dumps([(row["seq"], from_routing(move.routing), move.routing.reason) for row, move in pairs])


def _shift(connection: sa.Connection, moving: Sequence[tuple[Row, Move]]) -> None:
    """Count the moved jobs on their new route instead of the old one."""
    leaving = _sum_lanes((row["route"], "", row) for row, _ in moving)
    joining = _sum_lanes((move.route, "", row) for row, move in moving)
    for sign, lanes in ((-1, leaving), (+1, joining)):
        for (tenant_id, route, model, _), (count, gpu_seconds) in lanes.items():
            lane = {"tenant_id": tenant_id, "route": route, "model": model}
            lane |= {"state": JobState.QUEUED, "reason": "", "version": ""}
            fair_share.count(connection, lane, sign * count, sign * gpu_seconds)


def _count_decisions(connection: sa.Connection, pairs: Sequence[tuple[Row, Move]]) -> None:
    """Count every decision but the default."""
    counted = (
        (move.route, move.routing.reason, row)
        for row, move in pairs
        if move.routing.reason is not RouteReason.DEFAULT
    )
    for (tenant_id, route, model, reason), (count, gpu_seconds) in _sum_lanes(counted).items():
        key = fair_share.routed_key({"tenant_id": tenant_id, "model": model}, route, RouteReason(reason))
        fair_share.count(connection, key, count, gpu_seconds)


_Lane = tuple[str, str, str, str]


def _sum_lanes(entries: Iterable[tuple[str, str, Row]]) -> Mapping[_Lane, tuple[int, float]]:
    """Jobs and GPU-seconds by tenant, route, model and reason."""
    sums: defaultdict[_Lane, tuple[int, float]] = defaultdict(lambda: (0, 0.0))
    for route, reason, row in entries:
        lane = (row["tenant_id"], route, row["model"], reason)
        count, gpu_seconds = sums[lane]
        sums[lane] = (count + 1, gpu_seconds + row["predicted_gpu_seconds"])
    return sums
