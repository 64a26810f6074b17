"""Jobs that wait change their route: read in the order of their deadlines, moved in one transaction."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from filmgate.database.schema import accounts, events, invocations, jobs
from filmgate.jobs import JobId, JobState, Route, RouteReason, StageSeconds, TenantId
from filmgate.scheduling import fair_share
from filmgate.scheduling.rows import Row, from_routing, to_routing, to_spec
from filmgate.scheduling.waiting import Line, Move, Turn, Waiting

_IS_QUEUED = sa.text("jobs.state = 'queued'")
# What a provider has been asked to render is paid for: such a job stays where its invocation is.
_IS_PAID = sa.and_(
    sa.text("jobs.route = 'managed'"),
    sa.exists().where(invocations.c.job_seq == jobs.c.seq, invocations.c.state.not_in(["failed", "closed"])),
)
_WAITING = (
    sa.select(
        jobs.c.id,
        jobs.c.tenant_id,
        jobs.c.spec,
        jobs.c.predicted,
        jobs.c.created_at,
        jobs.c.deadline_at,
        jobs.c.routing,
    )
    .where(_IS_QUEUED, jobs.c.route == sa.bindparam("route"), sa.not_(_IS_PAID))
    .order_by(jobs.c.deadline_at)
    .limit(sa.bindparam("most"))
)
_TURNS = sa.select(accounts.c.tenant_id, accounts.c.weight, accounts.c.virtual_time).where(
    sa.text("accounts.queued > 0")
)
_LOCK_ACCOUNTS = (
    sa.select(accounts.c.tenant_id)
    .where(accounts.c.tenant_id.in_(sa.bindparam("tenants", expanding=True)))
    .order_by(accounts.c.tenant_id)
    .with_for_update()
)


def _find_statement(dialect: str) -> sa.Select[Any]:
    """Those of the named jobs that may move. The accounts are locked by then, and with them every transition
    of these jobs: no row needs its own lock.
    """
    given = sa.bindparam("ids", type_=sa.Text)
    listed = (
        sa.func.json_each(given)
        if dialect == "sqlite"
        else sa.func.json_array_elements_text(sa.cast(given, sa.JSON))
    )
    names = listed.table_valued("value")
    columns = ("seq", "id", "tenant_id", "route", "model", "predicted_gpu_seconds")
    found = sa.select(*(jobs.c[name] for name in columns)).join(names, names.c.value == jobs.c.id)
    return found.where(_IS_QUEUED, sa.not_(_IS_PAID))


def _list_moves(dialect: str) -> sa.Subquery:
    """The moves as a table: one parameter and one statement, however many there are."""
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
    """An event for each moved job, at the revision its move has just given it."""
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


def read_line(connection: sa.Connection, route: Route, limit: int, now: float) -> Line:
    """The jobs that wait on a route, and whose turn is how far."""
    rows = connection.execute(_WAITING, {"route": route, "most": limit})
    return Line(
        now=now,
        jobs=tuple(_to_waiting(row) for row in rows.mappings()),
        turns={
            TenantId(row.tenant_id): Turn(row.weight, row.virtual_time) for row in connection.execute(_TURNS)
        },
    )


@lru_cache(maxsize=1024)
def _to_predicted(text: str) -> StageSeconds:
    """Jobs of one shape have one prediction: most lines hold few different ones."""
    return StageSeconds(**json.loads(text))


def _to_waiting(row: Row) -> Waiting:
    return Waiting(
        job_id=JobId(row["id"]),
        tenant_id=TenantId(row["tenant_id"]),
        spec=to_spec(row["spec"]),
        predicted=_to_predicted(row["predicted"]),
        created_at=row["created_at"],
        deadline_at=row["deadline_at"],
        reason=to_routing(row["routing"]).reason,
    )


def move_jobs(connection: sa.Connection, moves: Sequence[Move], now: float) -> int:
    """Write the moves whose jobs still wait; how many changed their route.

    The accounts are locked first, in order: whoever leases a job holds its tenant's account, so a job is
    either leased before (and no longer found here) or moved before (and no longer found there).
    """
    wishes = {move.job_id: move for move in moves}
    connection.execute(_LOCK_ACCOUNTS, {"tenants": sorted({move.tenant_id for move in moves})}).all()
    dialect = connection.dialect.name
    found = connection.execute(_FIND[dialect], {"ids": json.dumps(list(wishes))}).mappings()
    pairs = [(row, wishes[row["id"]]) for row in found]
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
    _count_decisions(connection, pairs)
    return len(moving)


def _to_json(pairs: Sequence[tuple[Row, Move]]) -> str:
    return json.dumps([(row["seq"], from_routing(move.routing), move.routing.reason) for row, move in pairs])


def _shift(connection: sa.Connection, moving: Sequence[tuple[Row, Move]]) -> None:
    """Count the moved jobs on their new route instead of the old one."""
    leaving = _sum_lanes((row["route"], "", row) for row, _ in moving)
    joining = _sum_lanes((move.route, "", row) for row, move in moving)
    for sign, lanes in ((-1, leaving), (+1, joining)):
        for (tenant_id, route, model, _), (count, gpu_seconds) in lanes.items():
            lane = {"tenant_id": tenant_id, "route": route, "model": model}
            lane |= {"state": JobState.QUEUED, "reason": ""}
            fair_share.add_load(connection, lane, sign * count, sign * gpu_seconds)


def _count_decisions(connection: sa.Connection, pairs: Sequence[tuple[Row, Move]]) -> None:
    """Staying home as usual is no decision worth counting."""
    unusual = (
        (move.route, move.routing.reason, row)
        for row, move in pairs
        if move.routing.reason is not RouteReason.HOME
    )
    for (tenant_id, route, model, reason), (count, gpu_seconds) in _sum_lanes(unusual).items():
        lane = fair_share.routed_lane({"tenant_id": tenant_id, "model": model}, route, RouteReason(reason))
        fair_share.add_load(connection, lane, count, gpu_seconds)


_Lane = tuple[str, str, str, str]


def _sum_lanes(entries: Iterable[tuple[str, str, Row]]) -> Mapping[_Lane, tuple[int, float]]:
    """Jobs and GPU-seconds by tenant, route, model and reason: few rows to write, however many jobs."""
    sums: defaultdict[_Lane, tuple[int, float]] = defaultdict(lambda: (0, 0.0))
    for route, reason, row in entries:
        lane = (row["tenant_id"], route, row["model"], reason)
        count, gpu_seconds = sums[lane]
        sums[lane] = (count + 1, gpu_seconds + row["predicted_gpu_seconds"])
    return sums
