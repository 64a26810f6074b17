"""Retention: what has expired goes, row and files together; files that no row knows go too."""

import time
from collections.abc import Callable

from filmgate.errors import JobNotFound
from filmgate.jobs import JobId, TenantId
from filmgate.scheduling.base import JobBook, JobQueue
from filmgate.store.base import UNPUBLISHED_SECONDS, ObjectStore
from filmgate.telemetry.logs import Log
from filmgate.tenants.base import TenantRegistry

# An upload lies in the store before its job is accepted; younger than this it is not an orphan.
ORPHAN_SECONDS = 3600.0


class Retention:
    """Call `sweep` now and then, from one process or many: every step is idempotent."""

    def __init__(
        self,
        queue: JobQueue,
        book: JobBook,
        store: ObjectStore,
        tenants: TenantRegistry,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._queue = queue
        self._book = book
        self._store = store
        self._tenants = tenants
        self._clock = clock
        self._log = Log("retention")

    def sweep(self) -> int:
        """Remove every expired job; how many."""
        removed = 0
        while jobs := self._book.expired():
            for job in jobs:
                # Files first: a crash in between leaves a row that the next sweep finds again.
                self._store.delete(job.tenant_id, job.id)
                self._queue.remove(job.tenant_id, job.id)
            removed += len(jobs)
        if removed:
            self._log.info("expired jobs removed", jobs=removed)
        return removed

    def sweep_orphans(self) -> int:
        """Remove objects whose job does not exist (any more), and what was never published; how many jobs
        the objects belonged to.
        """
        if leftovers := self._store.sweep(UNPUBLISHED_SECONDS):
            self._log.warning("unpublished leftovers removed", leftovers=leftovers)
        orphans = [
            (tenant.id, job_id)
            for tenant in self._tenants.tenants()
            for job_id in self._store.jobs(tenant.id)
            if self._is_orphan(tenant.id, job_id)
        ]
        for tenant_id, job_id in orphans:
            self._store.delete(tenant_id, job_id)
        return len(orphans)

    def _is_orphan(self, tenant_id: TenantId, job_id: JobId) -> bool:
        newest = max((part.modified_at for part in self._store.parts(tenant_id, job_id)), default=0.0)
        if newest > self._clock() - ORPHAN_SECONDS:
            return False
        try:
            self._book.find(tenant_id, job_id)
        except JobNotFound:
            return True
        return False
