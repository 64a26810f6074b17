"""Which jobs a worker could lease this instant: what the sweep compares with the messages there are.

The cost grows with tenants and models, not with jobs: counters say how many wait, index seeks name the first.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from filmgate.database.schema import accounts, jobs, loads
from filmgate.jobs import JobId, JobState, Route
from filmgate.scheduling.claims import IS_READY, is_due
from filmgate.scheduling.rows import Row
from filmgate.scheduling.wakers.sqs_queues import Wakeup

Lane = tuple[Route, str]

_COLUMNS = (jobs.c.id, jobs.c.route, jobs.c.model, jobs.c.fence)
_QUEUES = (
    sa.select(loads.c.tenant_id, loads.c.route, loads.c.model, loads.c.jobs)
    .add_columns(accounts.c.max_running, accounts.c.running)
    .join(accounts, accounts.c.tenant_id == loads.c.tenant_id)
    .where(loads.c.state == JobState.QUEUED.value, loads.c.jobs > 0)
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
    .limit(sa.bindparam("room"))
)


def find_waiting(connection: sa.Connection, steady_now: float, limit: int) -> Mapping[Lane, Sequence[Wakeup]]:
    """Leasable jobs by lane, at most `limit` of each tenant's queue: due ones, then the heads of the rest."""
    found: dict[Lane, list[Wakeup]] = defaultdict(list)
    for row in connection.execute(is_due(sa.select(*_COLUMNS), steady_now).limit(limit)).mappings():
        _add(found, row)
    for queue in connection.execute(_QUEUES).mappings().all():
        room = min(queue["jobs"], limit, (queue["max_running"] or math.inf) - queue["running"])
        if room > 0:
            own = {"own": queue["tenant_id"], "route": queue["route"], "model": queue["model"], "room": room}
            for row in connection.execute(_HEADS, own).mappings():
                _add(found, row)
    return found


def _add(found: dict[Lane, list[Wakeup]], row: Row) -> None:
    route, model = Route(row["route"]), row["model"]
    found[route, model].append(Wakeup(JobId(row["id"]), route, model, row["fence"]))
