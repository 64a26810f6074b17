"""Retention: deletes expired jobs with their objects, and objects that belong to no job."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice

from filmgate.audit.records import Actor, ActorKind
from filmgate.jobs import Job, JobId
from filmgate.scheduling.base import JobQueue, JobReader
from filmgate.store.base import UNPUBLISHED_SECONDS, UPLOAD_PART, ObjectStore, StoredObject
from filmgate.telemetry.logs import Log
from filmgate.telemetry.periodic import attempt, attempt_each
from filmgate.tenants.base import Tenant
from filmgate.tenants.registry import TenantRegistry

# An upload is stored before its job is accepted: a younger object is not an orphan.
ORPHAN_SECONDS = 3600.0
_TASK = "retention"
_ACTOR = Actor(ActorKind.SYSTEM, "retention")
_BATCH = 100
# One query of the database per this many jobs in the store.
_ORPHAN_BATCH = 500
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
    ) -> None:
        self._queue = queue
        self._reader = reader
        self._store = store
        self._tenants = tenants
        self._clock = clock
        self._log = Log("retention")

    def delete_expired(self) -> int:
        """Delete every expired job. Returns how many were deleted."""
        deleted, failed = 0, set[JobId]()
        while len(failed) < _MAX_FAILURES and (jobs := self._find_expired(failed)):
            failed_now = attempt_each(_TASK, self._delete, jobs)
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
        """Delete unpublished drafts, objects of jobs that do not exist, and orphaned parts of finished jobs.

        Returns the number of jobs that do not exist.
        """
        attempt(_TASK, self._delete_drafts)
        sweeps = (partial(self._delete_orphans_of, tenant) for tenant in self._tenants.tenants())
        return sum(attempt(_TASK, sweep) or 0 for sweep in sweeps)

    def _delete_drafts(self) -> None:
        if drafts := self._store.sweep(UNPUBLISHED_SECONDS):
            self._log.warning("unpublished objects deleted", orphans=drafts)

    def _delete_orphans_of(self, tenant: Tenant) -> int:
        tenant_id, before, deleted = tenant.id, self._clock() - ORPHAN_SECONDS, 0
        old = ((job_id, parts) for job_id, parts in self._store.jobs(tenant_id) if _newest(parts) <= before)
        while batch := dict(islice(old, _ORPHAN_BATCH)):
            # `changes` does not decrypt: an unusable key must not stop the sweep.
            found = self._reader.changes(dict.fromkeys(batch, -1))
            known = {job.id: job for job in found if job.tenant_id == tenant_id}
            orphans = self._without_older({j: parts for j, parts in batch.items() if j not in known}, tenant)
            failed = attempt_each(_TASK, partial(self._store.delete, tenant_id), orphans)
            deleted += len(orphans) - len(failed)
            finished = [(job, batch[job.id]) for job in known.values() if job.state.is_final]
            attempt_each(_TASK, self._delete_orphaned_parts, finished)
        return deleted

    def _without_older(
        self, found: Mapping[JobId, Sequence[StoredObject]], tenant: Tenant
    ) -> Sequence[JobId]:
        """Not the objects from before the tenant existed here: another database may have their jobs."""
        own = [job_id for job_id, parts in found.items() if not parts or _newest(parts) >= tenant.created_at]
        if kept := len(found) - len(own):
            message = "objects older than their tenant are kept; another installation may use this store"
            self._log.warning(message, tenant_id=tenant.id, orphans=kept)
        return own

    def _delete_orphaned_parts(self, entry: tuple[Job, Sequence[StoredObject]]) -> None:
        """Delete what a worker left behind because it was killed right after the job ended."""
        job, parts = entry
        orphans = [stored.name.part for stored in parts if stored.name.part not in _kept_parts(job)]
        for part in orphans:
            self._store.delete(job.tenant_id, job.id, part)
        if orphans:
            self._log.info("orphaned parts of a finished job deleted", job_id=job.id, orphans=len(orphans))


def _newest(parts: Sequence[StoredObject]) -> float:
    return max((part.modified_at for part in parts), default=0.0)


def _kept_parts(job: Job) -> set[str]:
    clip = job.clip
    published = (clip.part, clip.thumbnail, clip.spritesheet) if clip is not None else ()
    return {UPLOAD_PART, *(part for part in published if part is not None)}
