"""The queue played forward: when each waiting job would start on our GPUs."""

import heapq
from collections import deque
from collections.abc import Callable

from filmgate.scheduling.waiting import Line, Turn, Waiting

_NEWCOMER = Turn(weight=1.0, virtual_time=0.0)


def rehearse(
    line: Line, gpus: float, running_seconds: float, takes_turn: Callable[[Waiting, float], bool]
) -> None:
    """Tell `takes_turn` every job and its wait in seconds, in the order the queue would start them: the
    tenant with the least virtual time next, its earliest deadline first.

    A job that does not take its turn costs those behind it nothing, so one look finds no more jobs to send
    away than it takes to bring the rest home in time.
    """
    turns = {job.tenant_id: line.turns.get(job.tenant_id, _NEWCOMER) for job in line.jobs}
    queues = {tenant_id: deque[Waiting]() for tenant_id in turns}
    for job in line.jobs:
        queues[job.tenant_id].append(job)
    heap = [(turn.virtual_time, tenant_id) for tenant_id, turn in turns.items()]
    heapq.heapify(heap)
    busy_seconds = running_seconds
    while heap:
        virtual_time, tenant_id = heapq.heappop(heap)
        job = queues[tenant_id].popleft()
        if takes_turn(job, busy_seconds / gpus if gpus else float("inf")):
            busy_seconds += job.predicted.gpu_seconds
            virtual_time += job.predicted.gpu_seconds / turns[tenant_id].weight
        if queues[tenant_id]:
            heapq.heappush(heap, (virtual_time, tenant_id))
