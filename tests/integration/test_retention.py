"""Retention: expired jobs are deleted with their objects, and objects without a job are deleted."""

import os
import time
from dataclasses import dataclass

import pytest

from filmgate.database.engine import Database
from filmgate.database.migration import migrate
from filmgate.errors import JobNotFound, StoreForbidden, StoreUnavailable
from filmgate.jobs import TenantId, new_job_id
from filmgate.maintenance import retention as retention_module
from filmgate.maintenance.retention import ORPHAN_SECONDS, Retention
from filmgate.scheduling import open_queue, open_reader
from filmgate.settings import QueueSettings
from filmgate.store.base import ObjectName
from filmgate.store.keys.data_keys import DataKeys
from filmgate.store.keys.files import FileKeyring
from filmgate.store.local.store import LocalStore
from filmgate.tenants.base import Tenant
from filmgate.tenants.registry import TenantRegistry
from tests.stores import parts_of
from tests.tickets import RESULT, make_offer, make_ticket

ACME, GLOBEX = TenantId("acme"), TenantId("globex")
RETENTION_SECONDS = 100


@dataclass
class Site:
    """Queue, store and tenants with a clock that tests set."""

    folder: object
    now: float

    def __post_init__(self):
        self.database = Database(f"sqlite:///{self.folder / 'filmgate.db'}", clock=lambda: self.now)
        migrate(self.database)
        keys = DataKeys(FileKeyring(self.folder / "keys"))
        self.queue = open_queue(self.database, keys, QueueSettings(retention_seconds=RETENTION_SECONDS))
        self.reader, self.tenants = open_reader(self.database, keys), TenantRegistry(self.database)
        self.store = LocalStore(self.folder / "objects", keys)
        for tenant_id in (ACME, GLOBEX):
            self.tenants.add(Tenant(id=tenant_id))

    def retention(self, store=None):
        parts = (self.queue, self.reader, store or self.store, self.tenants)
        return Retention(*parts, clock=lambda: self.now)

    def complete_job(self, tenant_id=ACME):
        job = self.queue.enqueue(make_ticket(tenant_id))
        self.store.put(ObjectName(tenant_id, job.id, "clip-1.mp4"), [b"clip"])
        return self.queue.complete(self.queue.lease(make_offer()), RESULT)

    def remaining(self, tenant_id=ACME):
        return {job.id for job in self.reader.page(tenant_id, limit=100).jobs}


@pytest.fixture
def site(tmp_path):
    site = Site(tmp_path, time.time())
    yield site
    site.database.close()


class FailingStore:
    """A store that fails for some jobs and tenants."""

    def __init__(self, store, job_ids=(), tenant_ids=()):
        self._store, self._job_ids, self._tenant_ids = store, job_ids, tenant_ids

    def __getattr__(self, name):
        return getattr(self._store, name)

    def delete(self, tenant_id, job_id, prefix=""):
        if job_id in self._job_ids:
            raise StoreUnavailable("down")
        return self._store.delete(tenant_id, job_id, prefix)

    def jobs(self, tenant_id):
        if tenant_id in self._tenant_ids:
            raise StoreForbidden("no", permission="s3:ListBucket")
        return self._store.jobs(tenant_id)

    def sweep(self, seconds):
        if self._tenant_ids:
            raise StoreForbidden("no", permission="s3:ListBucketMultipartUploads")
        return self._store.sweep(seconds)


def test_expired_jobs_and_orphans_are_deleted_and_everything_else_stays(site):
    old = site.complete_job()
    site.now += 60
    young = site.complete_job()
    waiting, orphan = site.queue.enqueue(make_ticket()), new_job_id()
    site.store.put(ObjectName(ACME, orphan, "source"), [b"upload of a request that was rejected"])
    retention = site.retention()

    assert retention.delete_expired() == 0
    site.now += 50
    assert (retention.delete_expired(), retention.delete_expired()) == (1, 0)
    with pytest.raises(JobNotFound):
        site.reader.find(ACME, old.id)
    assert list(dict(site.store.jobs(ACME))) == sorted([young.id, orphan])
    assert retention.delete_orphans() == 0
    site.now += ORPHAN_SECONDS
    assert (retention.delete_orphans(), retention.delete_orphans()) == (1, 0)
    assert list(dict(site.store.jobs(ACME))) == [young.id]
    assert site.remaining() == {young.id, waiting.id}


def test_a_new_database_does_not_delete_the_clips_of_another_installation_from_its_store(tmp_path):
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    first = Site(tmp_path / "first", time.time())
    job = first.complete_job()
    second = Site(tmp_path / "second", time.time() + 60)
    second.now += 2 * ORPHAN_SECONDS
    assert second.retention(first.store).delete_orphans() == 0
    assert list(dict(first.store.jobs(ACME))) == [job.id]
    first.database.close()
    second.database.close()


def test_a_job_that_cannot_be_deleted_does_not_stop_the_others(site, monkeypatch, task_failures):
    monkeypatch.setattr(retention_module, "_BATCH", 2)
    jobs = [site.complete_job() for _ in range(7)]
    stuck = {job.id for job in jobs[:3]}  # more than one batch, and the oldest
    site.now += RETENTION_SECONDS + 1
    retention = site.retention(FailingStore(site.store, stuck))
    assert retention.delete_expired() == 4
    assert site.remaining() == stuck
    assert task_failures("retention") == 3
    assert site.retention().delete_expired() == 3, "the next run tries again"


def test_a_run_ends_when_the_store_is_down(site, monkeypatch, task_failures):
    monkeypatch.setattr(retention_module, "_BATCH", 2)
    monkeypatch.setattr(retention_module, "_MAX_FAILURES", 3)
    jobs = {site.complete_job().id for _ in range(7)}
    site.now += RETENTION_SECONDS + 1
    assert site.retention(FailingStore(site.store, jobs)).delete_expired() == 0
    assert task_failures("retention") == 4


def test_a_tenant_whose_objects_cannot_be_listed_does_not_stop_the_deletion_of_other_orphans(site):
    orphans = {tenant_id: new_job_id() for tenant_id in (ACME, GLOBEX)}
    for tenant_id, orphan in orphans.items():
        site.store.put(ObjectName(tenant_id, orphan, "source"), [b"upload"])
    site.now += ORPHAN_SECONDS + 3600
    assert site.retention(FailingStore(site.store, tenant_ids={ACME})).delete_orphans() == 1
    assert list(dict(site.store.jobs(ACME))) == [orphans[ACME]]
    assert list(dict(site.store.jobs(GLOBEX))) == []


def test_damaged_objects_do_not_stop_retention_or_the_orphan_sweep(site, tmp_path, task_failures):
    jobs = [site.complete_job() for _ in range(2)]
    orphans = [new_job_id() for _ in range(2)]
    for orphan in orphans:
        site.store.put(ObjectName(ACME, orphan, "source"), [b"upload"])
    for job_id, part in ((jobs[0].id, "clip-1.mp4"), (orphans[0], "source")):
        path = tmp_path / "objects" / ACME / job_id / part
        path.write_bytes(b"")
    site.now += ORPHAN_SECONDS + 3600
    retention = site.retention()
    assert (retention.delete_expired(), retention.delete_orphans()) == (2, 2)
    assert task_failures("retention") == 0
    assert list(dict(site.store.jobs(ACME))) == []


def test_the_orphan_sweep_lists_a_tenant_once_and_asks_the_database_for_many_jobs(site, monkeypatch):
    monkeypatch.setattr(retention_module, "_ORPHAN_BATCH", 2)
    jobs = [site.complete_job() for _ in range(3)]
    orphans = [new_job_id() for _ in range(2)]
    for orphan in orphans:
        site.store.put(ObjectName(ACME, orphan, "source"), [b"upload"])
    site.now += ORPHAN_SECONDS + 3600
    calls = []

    class Counted:
        def __init__(self, port, *verbs):
            self._port, self._verbs = port, verbs

        def __getattr__(self, name):
            if name in self._verbs:
                calls.append(name)
            return getattr(self._port, name)

    site.reader = Counted(site.reader, "changes")
    assert site.retention(Counted(site.store, "jobs", "parts", "stat")).delete_orphans() == 2
    assert sorted(calls) == ["changes"] * 3 + ["jobs"] * 2  # one listing per tenant
    assert list(dict(site.store.jobs(ACME))) == sorted(job.id for job in jobs)


def test_the_orphan_sweep_needs_no_key(site, tmp_path):
    kept, orphan = site.complete_job(), new_job_id()
    site.store.put(ObjectName(ACME, orphan, "source"), [b"upload"])
    (tmp_path / "keys" / "acme.key").chmod(0o644)
    site.now += ORPHAN_SECONDS + 3600
    keys = DataKeys(FileKeyring(tmp_path / "keys"))
    site.reader = open_reader(site.database, keys)
    assert site.retention().delete_orphans() == 1
    assert list(dict(site.store.jobs(ACME))) == [kept.id]


def test_unpublished_drafts_of_killed_writers_are_deleted_with_the_orphans(site, tmp_path, cloud):
    draft = tmp_path / "objects/.incoming/draft"
    draft.write_bytes(b"half")
    os.utime(draft, (1, 1))
    # moto dates every upload to November 2010, which is old enough.
    cloud.s3.create_multipart_upload(Bucket=cloud.bucket, Key=f"films/acme/{new_job_id()}/clip-1.mp4")
    for store in (site.store, cloud.open_store()):
        site.retention(store).delete_orphans()
    assert (draft.exists(), cloud.uploads()) == (False, [])


def test_orphaned_parts_of_a_finished_job_are_deleted_and_its_clip_is_kept(site):
    job = site.complete_job()
    for part in ("latents", "live/1/000000", "clip-10.mp4", "source"):
        site.store.put(ObjectName(ACME, job.id, part), [b"x"])
    running = site.queue.enqueue(make_ticket(ACME))
    site.queue.lease(make_offer())
    site.store.put(ObjectName(ACME, running.id, "latents"), [b"x"])

    def parts(of):
        return {stored.name.part for stored in parts_of(site.store, ACME, of.id)}

    assert (site.retention().delete_orphans(), len(parts(job))) == (0, 5)
    site.now += ORPHAN_SECONDS + 3600
    assert site.retention().delete_orphans() == 0
    assert (parts(job), parts(running)) == ({"clip-1.mp4", "source"}, {"latents"})
