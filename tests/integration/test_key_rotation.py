"""Encryption keys rotate without downtime: nothing becomes unreadable, and old keys can be deleted."""

import fcntl
import json
import os
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from filmgate.cli import app
from filmgate.errors import KeyRefused, KeyringUnavailable, ObjectCorrupt
from filmgate.jobs import Idempotency, TenantId
from filmgate.scheduling.rewrapping import PRUNE_SECONDS, Rewrapping
from filmgate.server import open_services
from filmgate.store.base import ObjectName
from filmgate.store.keys.data_keys import DataKeys, Sealer
from filmgate.store.keys.files import FileKeyring
from filmgate.store.keys.kms import KmsKeyring
from tests.aws import client, create_keys
from tests.service import settings_for
from tests.tickets import PROMPT, make_ticket

ACME = TenantId("acme")
BODY = Idempotency("a body", is_retry=True)


@pytest.fixture
def settings(tmp_path):
    """An installation with a job and a clip under the first key of the tenant."""
    settings = settings_for(tmp_path / "data")
    services = open_services(settings)
    job = services.queue.enqueue(make_ticket(idempotency=BODY))
    services.api.store.put(ObjectName(ACME, job.id, "clip-1.mp4"), [b"frames" * 300_000])
    services.queue._database.close()
    return settings


def keys_of(settings):
    return sorted(path.name for path in (settings.data / "keys").glob("acme*.key"))


def assert_readable(settings):
    """A new process reads everything and recognises the repeated body."""
    services = open_services(settings)
    (job,) = services.api.reader.page(ACME).jobs
    clip = b"".join(services.api.store.read(ObjectName(ACME, job.id, "clip-1.mp4")))
    repeated = services.queue.find_duplicate(ACME, BODY)
    services.queue._database.close()
    assert (job.spec.prompt, clip, repeated.id) == (PROMPT, b"frames" * 300_000, job.id)


def rewrap(settings):
    services = open_services(settings)
    keyring = FileKeyring(settings.data / "keys")
    try:
        return Rewrapping(services.queue._database, services.api.store, keyring).run(ACME)
    finally:
        services.queue._database.close()


def test_everything_stays_readable_before_and_after_the_old_keys_are_deleted(settings):
    keyring = FileKeyring(settings.data / "keys")
    clip = next((settings.data / "objects" / "acme").rglob("clip-1.mp4"))
    modified = clip.stat().st_mtime_ns
    for _ in range(2):
        keyring.rotate(ACME)
    assert keys_of(settings) == ["acme.1.key", "acme.2.key", "acme.key"]
    assert_readable(settings)
    first = rewrap(settings)
    assert (first.prompts, first.objects, first.pruned_keys) == (1, 1, 0), "other processes use the old keys"
    assert clip.stat().st_mtime_ns == modified + 1_000_000_000, "an incremental copy takes the object again"
    long_ago = time.time() - PRUNE_SECONDS - 1
    os.utime(settings.data / "keys" / "acme.key", (long_ago, long_ago))
    second = rewrap(settings)
    assert (second.prompts, second.objects, second.pruned_keys) == (0, 0, 2)
    assert keys_of(settings) == ["acme.key"]
    assert_readable(settings)


def test_a_running_process_uses_the_new_key_from_a_rotation_on_and_still_reads_the_old(tmp_path):
    keyring = FileKeyring(tmp_path / "keys")
    running = DataKeys(keyring)
    before = running.encrypting_key(ACME)
    assert running.encrypting_key(ACME) == before
    keyring.rotate(ACME)
    after = running.encrypting_key(ACME)
    assert keyring.rewrap(ACME, after.wrapped) is None, "it is wrapped with the new key"
    for key in (before, after):
        assert running.decrypting_key(ACME, key.wrapped) == key.plain
        assert DataKeys(keyring).decrypting_key(ACME, key.wrapped) == key.plain


def test_a_tenant_that_returns_is_not_encrypted_with_a_key_that_was_destroyed(tmp_path):
    """By another process: this one still holds a data key of the destroyed key."""
    running = DataKeys(FileKeyring(tmp_path / "keys"))
    before = running.encrypting_key(ACME)
    FileKeyring(tmp_path / "keys").forget(ACME)
    sealed = Sealer(running).seal(ACME, b"a red ball", "video_1")
    assert running.encrypting_key(ACME) != before
    restarted = Sealer(DataKeys(FileKeyring(tmp_path / "keys")))
    assert restarted.open(ACME, sealed, "video_1") == b"a red ball"


def test_no_key_is_created_in_place_of_a_folder_that_is_not_mounted(tmp_path):
    folder, away = tmp_path / "keys", tmp_path / "away"
    keyring = FileKeyring(folder)
    running, identity = DataKeys(keyring), keyring.identity
    before = running.encrypting_key(ACME)
    folder.rename(away)
    for tenant_id in (ACME, TenantId("new")):
        with pytest.raises(KeyringUnavailable, match="has lost its keys; mount or restore the folder"):
            running.encrypting_key(tenant_id)
    with pytest.raises(KeyringUnavailable):
        keyring.forget(ACME)  # "destroyed" would be wrong: the key is in the folder
    assert (keyring.identity, folder.exists()) == (identity, False)
    away.rename(folder)
    assert running.encrypting_key(ACME) == before
    assert running.encrypting_key(TenantId("new"))


def test_keys_are_rotated_and_destroyed_one_at_a_time(tmp_path, monkeypatch):
    """Of two rotations at once, one would replace the new key of the other, and what it encrypted is lost. A
    rotation during `forget` would keep a copy of the key.
    """
    keyring, changes = FileKeyring(tmp_path / "keys"), []
    keyring.new_data_key(ACME)

    def noting_the_lock(method):
        def change(path, *arguments, **options):
            if not path.name.startswith("."):  # a draft belongs to one process
                other = os.open(path.parent, os.O_RDONLY)
                with pytest.raises(BlockingIOError):
                    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.close(other)
                changes.append(path.name)
            return method(path, *arguments, **options)

        return change

    for name in ("hardlink_to", "unlink"):
        monkeypatch.setattr(Path, name, noting_the_lock(getattr(Path, name)))
    keyring.rotate(ACME)
    keyring.forget(ACME)
    assert changes == ["acme.1.key", "acme.1.key", "acme.key"]


def test_forgetting_destroys_the_keys_before_a_rotation_too(tmp_path):
    keyring = FileKeyring(tmp_path / "keys")
    wrapped = keyring.new_data_key(ACME).wrapped
    keyring.rotate(ACME)
    keyring.forget(ACME)
    keyring.new_data_key(ACME)  # a new key for the same name
    with pytest.raises(KeyRefused):
        keyring.open_data_key(ACME, wrapped)


def test_the_keys_of_one_tenant_are_not_those_of_a_similar_name(tmp_path):
    keyring = FileKeyring(tmp_path / "keys")
    other = TenantId("acme-1")
    wrapped = keyring.new_data_key(other).wrapped
    keyring.new_data_key(ACME)
    keyring.rotate(ACME)
    keyring.rotate(other)
    keyring.forget(ACME)
    assert keyring.open_data_key(other, wrapped)


def test_the_commands_rotate_and_rewrap(settings):
    def keys(*arguments):
        return CliRunner().invoke(app, ["keys", *arguments], env={"FILMGATE_DATA": str(settings.data)})

    assert json.loads(keys("rotate", "acme", "--json").stdout) == {"tenant": "acme", "rotated": True}
    rewrapped = json.loads(keys("rewrap", "acme", "--json").stdout)
    assert rewrapped == {"prompts": 1, "objects": 1, "pruned_keys": 0}
    assert isinstance(keys("rotate", "unknown").exception, KeyRefused)
    assert keys("adopt").exit_code == 0


def test_kms_opens_old_data_keys_after_aws_has_rotated_the_key(aws_url):
    kms, template = client("kms", aws_url), create_keys(aws_url)
    keyring = KmsKeyring(kms, template)
    before = keyring.new_data_key(ACME)
    key_id = kms.describe_key(KeyId=template.of(ACME))["KeyMetadata"]["KeyId"]
    kms.enable_key_rotation(KeyId=key_id, RotationPeriodInDays=90)
    kms.rotate_key_on_demand(KeyId=key_id)
    assert kms.get_key_rotation_status(KeyId=key_id)["KeyRotationEnabled"]
    after = keyring.new_data_key(ACME)
    for key in (before, after):
        assert keyring.open_data_key(ACME, key.wrapped) == key.plain


def test_a_rewrapped_object_of_another_tenant_is_still_corrupt(settings):
    """Rewrapping does not weaken the binding of an object to its name."""
    FileKeyring(settings.data / "keys").rotate(ACME)
    rewrap(settings)
    clip = next((settings.data / "objects" / "acme").rglob("clip-1.mp4"))
    moved = clip.with_name("clip-2.mp4")
    moved.write_bytes(clip.read_bytes())
    services = open_services(settings)
    with pytest.raises(ObjectCorrupt):
        list(services.api.store.read(ObjectName(ACME, TenantId(clip.parent.name), "clip-2.mp4")))
    services.queue._database.close()
