"""Retention: deletes expired jobs with their objects, and objects that belong to no job."""

import time
from collections.abc import Callable

from filmgate.errors import JobNotFound
from filmgate.jobs import Job, JobId, TenantId
from filmgate.scheduling.base import JobQueue, JobReader
from filmgate.store.base import UNPUBLISHED_SECONDS, ObjectStore
from filmgate.telemetry.logs import Log
from filmgate.telemetry.periodic import attempt_each
from filmgate.tenants.base import TenantRegistry

# An upload is stored before its job is accepted: a younger object is not an orphan.
ORPHAN_SECONDS = 3600.0
_TASK = "retention"


class Retention:
    """Run it periodically, in any number of processes: every step is idempotent."""

    def __init__(
        self,
        queue: JobQueue,
        reader: JobReader,
        store: ObjectStore,
        tenants: TenantRegistry,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._queue = queue
        self._reader = reader
        self._store = store
        self._tenants = tenants
        self._clock = clock
        self._log = Log("retention")

    def delete_expired(self) -> int:
        """Delete every expired job. Returns how many. A job that cannot be deleted does not stop the rest."""
        deleted = 0
        while jobs := self._reader.expired():
            done = attempt_each(_TASK, self._delete, jobs)
            deleted += done
            if not done:
                break
        if deleted:
            self._log.info("expired jobs deleted", jobs=deleted)
        return deleted

    def _delete(self, job: Job) -> None:
        # Objects first: after a crash in between, the row is found again.
        self._store.delete(job.tenant_id, job.id)
        self._queue.remove(job.tenant_id, job.id)

    def delete_orphans(self) -> int:
        """Delete objects whose job does not exist, and unpublished drafts. Returns how many jobs it was."""
        if drafts := self._store.sweep(UNPUBLISHED_SECONDS):
            self._log.warning("unpublished objects deleted", leftovers=drafts)
        orphans = [
            (tenant.id, job_id)
            for tenant in self._tenants.tenants()
            for job_id in self._store.jobs(tenant.id)
            if self._is_orphan(tenant.id, job_id)
        ]
        return attempt_each(_TASK, lambda orphan: self._store.delete(*orphan), orphans)

    def _is_orphan(self, tenant_id: TenantId, job_id: JobId) -> bool:
        newest = max((part.modified_at for part in self._store.parts(tenant_id, job_id)), default=0.0)
        if newest > self._clock() - ORPHAN_SECONDS:
            return False
        try:
            self._reader.find(tenant_id, job_id)
        except JobNotFound:
            return True
        return False
