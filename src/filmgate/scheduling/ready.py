"""Which jobs can be leased: the conditions, and the list that wake-ups are compared with."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from filmgate.database.schema import accounts, job_counts, jobs
from filmgate.jobs import JobId, JobState, Route
from filmgate.scheduling.rows import Row

Lane = tuple[Route, str]  # jobs of one route and model

# The server's clock went back by more than any correction does: the lease is from before that.
_CLOCK_STEP_SECONDS = 60.0

IS_READY = sa.text("jobs.state = 'queued' AND jobs.wake_at IS NULL")
IS_DUE = sa.or_(jobs.c.wake_at <= sa.bindparam("steady_now"), jobs.c.wake_set_at > sa.bindparam("future"))
_COLUMNS = (jobs.c.id, jobs.c.route, jobs.c.model, jobs.c.fence)
_DUE = (
    sa.select(*_COLUMNS)
    .where(sa.text("jobs.wake_at IS NOT NULL"), IS_DUE)
    .order_by(jobs.c.wake_at)
    .limit(sa.bindparam("most"))
)
_LANES = (
    sa.select(job_counts.c.tenant_id, job_counts.c.route, job_counts.c.model, job_counts.c.jobs)
    .add_columns(accounts.c.max_running, accounts.c.running)
    .join(accounts, accounts.c.tenant_id == job_counts.c.tenant_id)
    .where(job_counts.c.state == JobState.QUEUED.value, job_counts.c.jobs > 0)
)
_HEADS = (
    sa.select(*_COLUMNS)
    .where(
        jobs.c.tenant_id == sa.bindparam("own"),
        jobs.c.route == sa.bindparam("route"),
        jobs.c.model == sa.bindparam("model"),
        IS_READY,
    )
    .order_by(jobs.c.deadline_at, jobs.c.seq)
    .limit(sa.bindparam("most"))
)


@dataclass(frozen=True, slots=True)
class ReadyJob:
    """A job that a worker of its route and model can lease now."""

    job_id: JobId
    route: Route
    model: str
    fence: int = 0


def time_terms(steady_now: float) -> dict[str, Any]:
    """The parameters of IS_DUE."""
    return {"steady_now": steady_now, "future": steady_now + _CLOCK_STEP_SECONDS}


def find_ready(connection: sa.Connection, steady_now: float, limit: int) -> Mapping[Lane, Sequence[ReadyJob]]:
    """Jobs that can be leased now, at most `limit` per tenant, route and model.

    The cost grows with tenants and models, not with jobs.
    """
    found: dict[Lane, list[ReadyJob]] = defaultdict(list)
    for row in connection.execute(_DUE, time_terms(steady_now) | {"most": limit}).mappings():
        _add(found, row)
    for lane in connection.execute(_LANES).mappings().all():
        most = min(lane["jobs"], limit, (lane["max_running"] or math.inf) - lane["running"])
        if most > 0:
            own = {"own": lane["tenant_id"], "route": lane["route"], "model": lane["model"], "most": most}
            for row in connection.execute(_HEADS, own).mappings():
                _add(found, row)
    return found


def _add(found: dict[Lane, list[ReadyJob]], row: Row) -> None:
    route, model = Route(row["route"]), row["model"]
    found[route, model].append(ReadyJob(JobId(row["id"]), route, model, row["fence"]))
