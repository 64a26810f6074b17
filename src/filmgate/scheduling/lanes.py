"""Lanes: jobs that wait for the same workers, because of their route, their model and their tenant."""

from filmgate.jobs import Route, TenantId
from filmgate.scheduling.snapshot import Snapshot
from filmgate.scheduling.workers import WorkerStatus

# The tenant is empty unless workers of its own serve it.
Lane = tuple[Route, str, TenantId]

_ANY = TenantId("")


class Lanes:
    """The lanes of a snapshot. The same rule as in `lease`: see `claims.may_take`."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._dedicated = snapshot.dedicated
        named = {tenant for worker in snapshot.workers for tenant in worker.tenants}
        self._apart = named | snapshot.dedicated

    def of(self, route: Route, model: str, tenant_id: TenantId) -> Lane:
        return (route, model, tenant_id if tenant_id in self._apart else _ANY)

    def queued(self) -> set[Lane]:
        """The lanes that have queued jobs."""
        snapshot = self._snapshot
        listed = {self.of(job.route, job.model, job.tenant_id) for job in snapshot.queued}
        return listed | {self.of(tail.route, tail.model, tail.tenant_id) for tail in snapshot.tails}

    def served_by(self, worker: WorkerStatus) -> frozenset[Lane]:
        tenants = set(worker.tenants) or {_ANY, *self._apart}
        if not worker.tenants and worker.route is Route.GPU:
            tenants -= self._dedicated
        return frozenset((worker.route, model, tenant) for model in worker.models for tenant in tenants)

    def share_a_backlog(self, one: TenantId, other: TenantId) -> bool:
        """Whether two tenants wait for the same GPUs: a dedicated tenant waits for its own alone."""
        return one == other or not {one, other} & self._dedicated
