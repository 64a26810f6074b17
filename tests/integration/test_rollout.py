"""An upgrade without downtime: a newer version changes the schema while processes of this version run."""

import json
import shutil
from dataclasses import replace

import pytest
import sqlalchemy as sa

from filmgate.database import migration, open_database
from filmgate.database.engine import Database
from filmgate.database.schema import REVISION
from filmgate.errors import QueueUnavailable
from filmgate.jobs import JobState, Reason, TenantId
from filmgate.scheduling import open_queue, open_reader
from filmgate.settings import QueueSettings
from filmgate.store.keys.data_keys import DataKeys
from filmgate.store.keys.files import FileKeyring
from filmgate.tenants.base import Tenant
from filmgate.tenants.registry import TenantRegistry
from tests.commands import run_filmgate
from tests.tickets import RESULT, make_offer, make_ticket

ACME = TenantId("acme")
OLDEST = "0100"  # the first schema from which upgrades are promised
REFUSAL = "the database has schema 0101, which is newer than this version of filmgate; upgrade filmgate"
NEXT_VERSION = """
import sqlalchemy as sa
from alembic import op

revision, down_revision = "0101", "{head}"

def upgrade():
    op.add_column("jobs", sa.Column("mood", sa.Text))
    op.create_table("moods", sa.Column("name", sa.Text, primary_key=True))
"""


class Site:
    """A database of the oldest schema with a job in every state, and the queue of a running process."""

    def __init__(self, url, folder):
        self.url, self.folder = url, folder
        self.database = Database(url)
        migration.migrate(self.database, OLDEST)
        keys = DataKeys(FileKeyring(folder / "keys"))
        self.queue = open_queue(self.database, keys, QueueSettings(backoff_seconds=0))
        self.reader, self.tenants = open_reader(self.database, keys), TenantRegistry(self.database)
        self.key = self.tenants.add(Tenant(ACME)).secret
        self.completed = self.queue.enqueue(make_ticket())
        self.queue.complete(self.queue.lease(make_offer()), RESULT)
        self.failed = self.queue.enqueue(make_ticket())
        self.queue.cancel(ACME, self.failed.id)
        self.running = self.queue.enqueue(make_ticket(seed=1))
        self.lease = self.queue.lease(make_offer())
        self.queued = self.queue.enqueue(make_ticket(seed=2))

    def upgrade(self, scripts, monkeypatch):
        """Upgrade as the next version would, and write what only that version knows."""
        with monkeypatch.context() as newer:
            newer.setattr(migration, "_SCRIPTS", scripts)
            migration.migrate(self.database)
        with self.database.write() as connection:
            connection.exec_driver_sql(
                "UPDATE jobs SET mood = 'calm', stage = 'upscale' WHERE state = 'running'"
            )
            self._add(connection, "spec", self.queued, mood="calm")
            self._add(connection, "predicted", self.queued, upscale=1.0)
            self._add(connection, "clip", self.completed, upscaled="clip-1-4k.mp4")
            self._add(connection, "failure", self.failed, reason="mood_refused")
            share = json.dumps({"weight": 2.0, "max_moods": 3})
            scopes = json.dumps(["generate", "read", "moods"])
            connection.execute(
                sa.text("UPDATE tenants SET share = :share, scopes = :scopes"),
                {"share": share, "scopes": scopes},
            )

    @staticmethod
    def _add(connection, column, job, **fields):
        found = sa.text(f"SELECT {column} FROM jobs WHERE id = :id")
        stored = json.loads(connection.execute(found, {"id": job.id}).scalar_one())
        changed = sa.text(f"UPDATE jobs SET {column} = :value WHERE id = :id")
        connection.execute(changed, {"value": json.dumps(stored | fields), "id": job.id})

    def find(self, job):
        return self.reader.find(ACME, job.id)


@pytest.fixture(params=["sqlite", "postgresql"])
def site(request, tmp_path):
    if request.param == "sqlite":
        site = Site(f"sqlite:///{tmp_path / 'filmgate.db'}", tmp_path)
        yield site
        site.database.close()
        return
    url = request.getfixturevalue("postgres_url")
    _clear(url)
    site = Site(url, tmp_path)
    yield site
    site.database.close()
    _clear(url)
    database = Database(url)
    migration.migrate(database)
    database.close()


def _clear(url):
    database = Database(url)
    with database.write() as connection:
        connection.exec_driver_sql("DROP SCHEMA public CASCADE")
        connection.exec_driver_sql("CREATE SCHEMA public")
    database.close()


@pytest.fixture
def scripts(tmp_path):
    """The migrations of the next version: ours, and one more."""
    folder = shutil.copytree(migration._SCRIPTS, tmp_path / "migrations")
    (folder / "versions" / "v0101_moods.py").write_text(NEXT_VERSION.format(head=REVISION))
    return folder


def test_a_database_of_the_oldest_schema_is_upgraded_with_its_jobs(site):
    migration.migrate(site.database)
    assert site.find(site.completed).clip == RESULT.clip
    assert site.find(site.failed).failure.reason is Reason.CANCELLED
    assert site.find(site.queued).spec.prompt == site.queued.spec.prompt
    assert site.tenants.authenticate(site.key).id == ACME
    assert site.queue.complete(site.lease, RESULT).state is JobState.COMPLETED


def test_processes_of_this_version_work_on_beside_a_newer_one(site, scripts, monkeypatch):
    site.upgrade(scripts, monkeypatch)
    assert site.tenants.authenticate(site.key).share.weight == 2.0
    assert site.tenants.find(ACME).scopes == {"generate", "read"}
    assert (site.find(site.running).progress, site.find(site.completed).clip) == (None, RESULT.clip)
    assert site.find(site.failed).failure.reason is Reason.INTERNAL
    assert site.queue.heartbeat(site.lease).is_cancelling is False
    assert site.queue.complete(site.lease, RESULT).state is JobState.COMPLETED
    lease = site.queue.lease(make_offer())
    assert (lease.job.id, lease.job.spec.extra) == (site.queued.id, {"mood": "calm"})
    assert site.queue.complete(lease, RESULT).state is JobState.COMPLETED
    added = site.queue.enqueue(make_ticket(seed=3))
    assert site.queue.cancel(ACME, added.id).state is JobState.FAILED
    assert len(site.reader.page(ACME).jobs) == 5
    assert site.tenants.update(ACME, lambda old: replace(old, is_enabled=False)).is_enabled is False


def test_a_process_of_this_version_does_not_start_on_a_newer_schema(site, scripts, monkeypatch):
    site.upgrade(scripts, monkeypatch)
    with pytest.raises(QueueUnavailable) as refused:
        open_database(QueueSettings(url=site.url), site.folder)
    assert str(refused.value) == REFUSAL
    environ = {"QUEUE__URL": site.url, "API__PORT": "0", "PROVIDER__KIND": "http", "PROVIDER__API_KEY": "x"}
    for name, value in (environ | {"PROVIDER__URL": "http://127.0.0.1:9/v1"}).items():
        monkeypatch.setenv(f"FILMGATE_{name}", value)
    for command in (["serve", "--no-worker"], ["worker", "--managed"], ["tenant", "list"]):
        done = run_filmgate(site.folder, *command)
        assert (done.returncode, REFUSAL in done.stderr) == (1, True), (command, done)
