"""How long a new job would wait under weighted fair sharing, and whether that still keeps the promise."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from filmgate.errors import Overloaded
from filmgate.jobs import JobState, Route, StageSeconds, TenantId
from filmgate.scheduling.base import Backlog


@dataclass(frozen=True, slots=True)
class Demand:
    """Who asks for how many GPU-seconds; `weights` has the other tenants' (1.0 where unknown)."""

    tenant_id: TenantId
    weight: float
    gpu_seconds: float
    weights: Mapping[TenantId, float]
    route: Route = Route.GPU


def wait_seconds(backlog: Backlog, demand: Demand, gpus: int) -> float:
    """Seconds before a new job of this tenant starts.

    By the time the tenant's own queue and this job are served, another tenant has been served in proportion
    to its weight, or has run dry: ten thousand jobs of one tenant do not delay another's first.
    """
    queued: dict[TenantId, float] = {}
    running = 0.0
    for load in backlog.loads:
        if load.route is not demand.route:
            continue
        if load.state is JobState.QUEUED:
            queued[load.tenant_id] = queued.get(load.tenant_id, 0.0) + load.gpu_seconds
        elif load.state is JobState.RUNNING:
            # Half of a running job is left on average.
            running += load.gpu_seconds / 2
    own = queued.pop(demand.tenant_id, 0.0)
    turn = (own + demand.gpu_seconds) / demand.weight
    others = sum(min(work, turn * demand.weights.get(who, 1.0)) for who, work in queued.items())
    return (running + own + others) / gpus


def place_in_queue(backlog: Backlog, demand: Demand, model: str) -> int:
    """The place of a job that joins now: its tenant's own jobs, and those that others start meanwhile."""
    loads = [
        load
        for load in backlog.loads
        if load.state is JobState.QUEUED and load.route is demand.route and load.model == model
    ]
    own = [load for load in loads if load.tenant_id == demand.tenant_id]
    turn = sum(load.gpu_seconds for load in own) / demand.weight
    others = sum(
        min(
            load.jobs,
            math.ceil(turn * demand.weights.get(load.tenant_id, 1.0) * load.jobs / load.gpu_seconds),
        )
        for load in loads
        if load.tenant_id != demand.tenant_id and load.gpu_seconds > 0
    )
    return 1 + sum(load.jobs for load in own) + others


def check_promise(wait: float, predicted: StageSeconds, promise_seconds: float) -> None:
    """Raises Overloaded when the job would be finished later than promised."""
    late = wait + predicted.gpu_seconds + predicted.upload - promise_seconds
    # A job that alone takes longer than the promise is let in when nothing is before it.
    if late <= 0 or wait <= 0:
        return
    retry_after = max(1.0, math.ceil(min(late, wait)))
    raise Overloaded(
        f"the queue would finish this in {wait + predicted.gpu_seconds:.0f} s; "
        f"{promise_seconds:.0f} s are promised. Try again in {retry_after:.0f} s",
        retry_after_seconds=retry_after,
    )
