"""What has expired goes whole: no row without its files, no file without its row."""

import os
import time

import pytest

from filmgate.database.engine import Database
from filmgate.database.migration import migrate
from filmgate.errors import JobNotFound
from filmgate.jobs import TenantId, new_job_id
from filmgate.scheduling import open_queue, open_reader
from filmgate.settings import QueueSettings
from filmgate.store.base import ObjectName
from filmgate.store.keys.cache import DataKeys
from filmgate.store.keys.files import FileKeyring
from filmgate.store.local.store import LocalStore
from filmgate.tenants import open_tenants
from filmgate.tenants.base import Tenant
from filmgate.worker.retention import ORPHAN_SECONDS, Retention
from tests.tickets import RESULT, make_offer, make_ticket

ACME = TenantId("acme")


def test_expired_jobs_and_orphans_go_and_everything_else_stays(tmp_path):
    now = time.time()
    database = Database(f"sqlite:///{tmp_path / 'filmgate.db'}", clock=lambda: now)
    migrate(database)
    keys = DataKeys(FileKeyring(tmp_path / "keys"))
    queue = open_queue(database, keys, QueueSettings(retention_seconds=100))
    book, tenants = open_reader(database, keys), open_tenants(database)
    store = LocalStore(tmp_path / "objects", keys)
    tenants.add(Tenant(id=ACME))
    retention = Retention(queue, book, store, tenants, clock=lambda: now)

    old = queue.enqueue(make_ticket())
    store.put(ObjectName(ACME, old.id, "clip-1.mp4"), [b"clip"])
    queue.complete(queue.lease(make_offer()), RESULT)
    now += 60
    young = queue.enqueue(make_ticket())
    store.put(ObjectName(ACME, young.id, "clip-1.mp4"), [b"clip"])
    queue.complete(queue.lease(make_offer()), RESULT)
    waiting, orphan = queue.enqueue(make_ticket()), new_job_id()
    store.put(ObjectName(ACME, orphan, "source"), [b"upload of a request that was never accepted"])

    assert retention.sweep() == 0
    now += 50
    assert (retention.sweep(), retention.sweep()) == (1, 0)
    with pytest.raises(JobNotFound):
        book.find(ACME, old.id)
    assert list(store.jobs(ACME)) == sorted([young.id, orphan])
    assert retention.sweep_orphans() == 0
    now += ORPHAN_SECONDS
    assert (retention.sweep_orphans(), retention.sweep_orphans()) == (1, 0)
    assert list(store.jobs(ACME)) == [young.id]
    assert {job.id for job in book.page(ACME).jobs} == {young.id, waiting.id}
    database.close()


def test_what_killed_writers_left_unpublished_goes_with_the_orphans(tmp_path, cloud):
    database = Database(f"sqlite:///{tmp_path / 'filmgate.db'}")
    migrate(database)
    keys, tenants = DataKeys(FileKeyring(tmp_path / "keys")), open_tenants(database)
    queue, book = open_queue(database, keys, QueueSettings()), open_reader(database, keys)
    local, s3 = LocalStore(tmp_path / "objects", keys), cloud.open_store()
    draft = tmp_path / "objects/.incoming/draft"
    draft.write_bytes(b"half")
    os.utime(draft, (1, 1))
    # moto starts every upload in November 2010: old enough.
    cloud.s3.create_multipart_upload(Bucket=cloud.bucket, Key=f"films/acme/{new_job_id()}/clip-1.mp4")
    for store in (local, s3):
        Retention(queue, book, store, tenants).sweep_orphans()
    assert (draft.exists(), cloud.uploads()) == (False, [])
    database.close()
