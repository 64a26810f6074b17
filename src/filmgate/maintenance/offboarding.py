"""Deletes a tenant: its jobs, then its encryption key (crypto-shredding), then everything it stored."""

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

import sqlalchemy as sa

from filmgate.audit.chain import append
from filmgate.audit.records import Action, Actor, ActorKind, Entry
from filmgate.database import Database, open_database
from filmgate.database.schema import accounts, jobs
from filmgate.database.site import site_of
from filmgate.database.upserts import insert_into
from filmgate.errors import JobActive
from filmgate.jobs import JobId, JobState, TenantId
from filmgate.scheduling import open_queue
from filmgate.scheduling.base import JobQueue
from filmgate.settings import Settings
from filmgate.store import open_store
from filmgate.store.base import ObjectStore
from filmgate.store.keys import open_keys
from filmgate.store.keys.data_keys import DataKeys
from filmgate.tenants.base import FORGOTTEN
from filmgate.tenants.registry import TenantRegistry

_WAIT_SECONDS = 60.0
_POLL_SECONDS = 0.2
_ACTOR = Actor(ActorKind.SYSTEM, "offboarding")
OPEN_STATES = (JobState.QUEUED, JobState.RUNNING)


@dataclass(frozen=True, slots=True)
class Offboarded:
    """How many jobs and objects were deleted."""

    jobs: int
    objects: int


@dataclass(frozen=True, slots=True)
class Offboarding:
    """Every step is idempotent: after an interruption, run it again."""

    database: Database
    queue: JobQueue
    store: ObjectStore
    keys: DataKeys
    tenants: TenantRegistry
    wait_seconds: float = _WAIT_SECONDS

    def forget(self, tenant_id: TenantId, actor: Actor = _ACTOR) -> Offboarded:
        """Disable the tenant, cancel its jobs, destroy its key and delete what it stored.

        Raises JobActive while a worker still holds a job: it could create a new key to store the clip. Raises
        SettingsError, before anything changes, if the key is shared with other tenants.
        """
        self.keys.require_own_keys()
        self.tenants.disable(tenant_id, actor)
        self._accept_no_jobs(tenant_id)
        ended = self._end_jobs(tenant_id, actor)
        self.keys.forget(tenant_id)
        with self.database.write() as connection:
            forgotten = Entry(Action.FORGOTTEN, None, actor)
            append(connection, tenant_id, [forgotten], self.database.now(connection))
        objects = sum(self.store.delete(tenant_id, job_id) for job_id, _ in self.store.jobs(tenant_id))
        for job_id in ended:
            self.queue.remove(tenant_id, job_id, actor)
        return Offboarded(len(ended), objects)

    def delete(self, tenant_id: TenantId, actor: Actor = _ACTOR) -> Offboarded:
        """Forget the tenant and delete it with its API keys. Raises JobActive and TenantNotFound."""
        done = self.forget(tenant_id, actor)
        self.tenants.delete(tenant_id, actor)
        return done

    def delete_unused(self, tenant_id: TenantId, actor: Actor = _ACTOR) -> Offboarded:
        """The same for a disabled tenant without jobs. Raises TenantInUse and TenantNotFound."""
        self.tenants.check_unused(tenant_id)
        return self.delete(tenant_id, actor)

    def _accept_no_jobs(self, tenant_id: TenantId) -> None:
        """Reject requests whose API key was checked before. `_end_jobs` finds the jobs accepted until now."""
        forgotten = {"digest_key": FORGOTTEN}
        with self.database.write() as connection:
            insert = insert_into(connection, accounts).values(tenant_id=tenant_id, weight=1.0, **forgotten)
            connection.execute(insert.on_conflict_do_update(index_elements=["tenant_id"], set_=forgotten))

    def _end_jobs(self, tenant_id: TenantId, actor: Actor) -> list[JobId]:
        deadline = time.monotonic() + self.wait_seconds
        while running := self._cancel_jobs(tenant_id, actor):
            if time.monotonic() > deadline:
                raise JobActive(f"{len(running)} jobs of {tenant_id} are still being cancelled; try again")
            time.sleep(_POLL_SECONDS)
        return self._find_jobs(tenant_id, JobState.COMPLETED, JobState.FAILED)

    def _cancel_jobs(self, tenant_id: TenantId, actor: Actor) -> list[JobId]:
        """Cancel every open job. Returns those that workers still hold; one of a lost worker ends later."""
        for job_id in self._find_jobs(tenant_id, *OPEN_STATES):
            self.queue.cancel(tenant_id, job_id, actor)
        return self._find_jobs(tenant_id, *OPEN_STATES)

    def _find_jobs(self, tenant_id: TenantId, *states: JobState) -> list[JobId]:
        """Read without the prompts: the tenant's key may be unusable."""
        own = sa.select(jobs.c.id).where(jobs.c.tenant_id == tenant_id, jobs.c.state.in_(states))
        with self.database.read() as connection:
            return [JobId(found) for found in connection.execute(own).scalars()]


@contextmanager
def opened_offboarding(settings: Settings) -> Iterator[Offboarding]:
    """The offboarding of tenants of this installation. Raises SettingsError with another store or keyring."""
    keys = open_keys(settings.store, settings.data)
    store = open_store(settings.store, settings.data, keys)
    with (
        closing(open_database(settings.queue, settings.data)) as database,
        closing(open_queue(database, keys, settings.queue)) as queue,
    ):
        site_of(database, store, keys).require()
        yield Offboarding(database, queue, store, keys, TenantRegistry(database))
