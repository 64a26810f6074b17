"""Retention: deletes expired jobs with their objects, and objects that belong to no job."""

import time
from collections.abc import Callable, Sequence
from functools import partial

from filmgate.audit.records import Actor, ActorKind
from filmgate.jobs import Job, JobId, TenantId
from filmgate.scheduling.base import JobQueue, JobReader
from filmgate.store.base import UNPUBLISHED_SECONDS, UPLOAD_PART, ObjectStore
from filmgate.telemetry.logs import Log
from filmgate.telemetry.periodic import FailureCounter, attempt, attempt_each
from filmgate.tenants.registry import TenantRegistry

# An upload is stored before its job is accepted: a younger object is not an orphan.
ORPHAN_SECONDS = 3600.0
_TASK = "retention"
_ACTOR = Actor(ActorKind.SYSTEM, "retention")
_BATCH = 100
# A run ends after this many failures: then the store is down, and the next run tries again.
_MAX_FAILURES = 1000


class Retention:
    """Run it periodically, in any number of processes: every step is idempotent.

    A failure is logged and counted. It does not stop the deletion of other jobs or other tenants' orphans.
    """

    def __init__(
        self,
        queue: JobQueue,
        reader: JobReader,
        store: ObjectStore,
        tenants: TenantRegistry,
        *,
        clock: Callable[[], float] = time.time,
        failures: FailureCounter | None = None,
    ) -> None:
        self._queue = queue
        self._reader = reader
        self._store = store
        self._tenants = tenants
        self._clock = clock
        self._failures = failures
        self._log = Log("retention")

    def delete_expired(self) -> int:
        """Delete every expired job. Returns how many were deleted."""
        deleted, failed = 0, set[JobId]()
        while len(failed) < _MAX_FAILURES and (jobs := self._find_expired(failed)):
            failed_now = attempt_each(_TASK, self._delete, jobs, self._failures)
            failed |= {job.id for job in failed_now}
            deleted += len(jobs) - len(failed_now)
        if deleted:
            self._log.info("expired jobs deleted", jobs=deleted)
        return deleted

    def _find_expired(self, failed: set[JobId]) -> Sequence[Job]:
        """The next expired jobs, without those whose deletion failed in this run."""
        expired = self._reader.expired(limit=_BATCH + len(failed))
        return [job for job in expired if job.id not in failed]

    def _delete(self, job: Job) -> None:
        # Objects first: after a crash in between, the row is found again.
        self._store.delete(job.tenant_id, job.id)
        self._queue.remove(job.tenant_id, job.id, _ACTOR)

    def delete_orphans(self) -> int:
        """Delete unpublished drafts, the objects of jobs that do not exist and leftovers of ended jobs.

        Returns the number of jobs that do not exist.
        """
        attempt(_TASK, self._delete_drafts, self._failures)
        deleted = 0
        for tenant in self._tenants.tenants():
            found = attempt(_TASK, partial(self._list_jobs, tenant.id), self._failures) or []
            orphans: list[JobId] = []
            delete = partial(self._delete_orphan, tenant.id, orphans)
            attempt_each(_TASK, delete, found, self._failures)
            deleted += len(orphans)
        return deleted

    def _delete_drafts(self) -> None:
        if drafts := self._store.sweep(UNPUBLISHED_SECONDS):
            self._log.warning("unpublished objects deleted", leftovers=drafts)

    def _list_jobs(self, tenant_id: TenantId) -> list[JobId]:
        return list(self._store.jobs(tenant_id))

    def _delete_orphan(self, tenant_id: TenantId, deleted: list[JobId], job_id: JobId) -> None:
        parts = list(self._store.parts(tenant_id, job_id))
        newest = max((part.modified_at for part in parts), default=0.0)
        if newest > self._clock() - ORPHAN_SECONDS:
            return
        # `changes` does not decrypt: an unusable key must not stop the sweep.
        jobs = [job for job in self._reader.changes({job_id: -1}) if job.tenant_id == tenant_id]
        if not jobs:
            self._store.delete(tenant_id, job_id)
            deleted.append(job_id)
        elif jobs[0].state.is_final:
            self._delete_leftovers(jobs[0], [part.name.part for part in parts])

    def _delete_leftovers(self, job: Job, parts: Sequence[str]) -> None:
        """Delete what a worker left behind because it died right after the job ended."""
        leftovers = [part for part in parts if part not in _kept_parts(job)]
        for part in leftovers:
            self._store.delete(job.tenant_id, job.id, part)
        if leftovers:
            self._log.info("leftovers of an ended job deleted", job_id=job.id, leftovers=len(leftovers))


def _kept_parts(job: Job) -> set[str]:
    clip = job.clip
    published = (clip.part, clip.thumbnail, clip.spritesheet) if clip is not None else ()
    return {UPLOAD_PART, *(part for part in published if part is not None)}
