"""The contract of every Keyring, and of DataKeys and Sealer on top of it."""

import threading

import pytest

from filmgate.errors import KeyRefused, KeyringUnavailable
from filmgate.jobs import TenantId
from filmgate.store.keys.data_keys import DataKeys, Sealer
from filmgate.store.keys.files import FileKeyring
from tests.aws import client, create_keys

ACME, GLOBEX = TenantId("acme"), TenantId("globex")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "keys"


@pytest.fixture(params=["files", "kms"])
def keyring(request, folder):
    if request.param == "files":
        return FileKeyring(folder)
    from filmgate.store.keys.kms import KmsKeyring

    aws_url = request.getfixturevalue("aws_url")
    return KmsKeyring(client("kms", aws_url), create_keys(aws_url))


def test_a_data_key_opens_only_for_its_tenant(keyring):
    key = keyring.new_data_key(ACME)
    keyring.new_data_key(GLOBEX)
    assert keyring.open_data_key(ACME, key.wrapped) == key.plain
    changed = key.wrapped[:-1] + bytes([key.wrapped[-1] ^ 1])
    for tenant_id, wrapped in ((GLOBEX, key.wrapped), (ACME, changed), (ACME, b"short")):
        with pytest.raises(KeyRefused):
            keyring.open_data_key(tenant_id, wrapped)


def test_forgetting_a_tenant_makes_its_data_unreadable(keyring):
    key = keyring.new_data_key(ACME)
    keyring.forget(ACME)
    keyring.forget(ACME)
    with pytest.raises(KeyRefused):
        keyring.open_data_key(ACME, key.wrapped)


def test_only_the_owner_can_read_key_files(folder):
    keyring = FileKeyring(folder)
    key = keyring.new_data_key(ACME)
    [file] = folder.iterdir()
    assert (file.stat().st_mode & 0o777, folder.stat().st_mode & 0o777) == (0o600, 0o700)
    file.chmod(0o640)
    with pytest.raises(KeyringUnavailable, match="chmod 600"):
        keyring.open_data_key(ACME, key.wrapped)


def test_processes_that_create_the_same_key_at_once_use_one_key(folder):
    barrier, keys = threading.Barrier(8), []

    def create():
        keyring = FileKeyring(folder)
        barrier.wait(60)
        keys.append(keyring.new_data_key(ACME))

    threads = [threading.Thread(target=create) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [FileKeyring(folder).open_data_key(ACME, k.wrapped) for k in keys] == [k.plain for k in keys]
    assert len(list(folder.iterdir())) == 1


def test_copying_keys_changes_none_that_is_there_even_from_their_own_folder(folder, tmp_path):
    keyring, backup = FileKeyring(folder), tmp_path / "backup"
    identity, key = keyring.identity, keyring.new_data_key(ACME)
    keyring.copy_to(backup)
    files = {path: path.stat().st_ino for place in (folder, backup) for path in place.iterdir()}
    for source in (folder, backup):
        keyring.copy_from(source)
    assert {path: path.stat().st_ino for path in files} == files
    assert (keyring.identity, keyring.open_data_key(ACME, key.wrapped)) == (identity, key.plain)
    (backup / f"{ACME}.key").write_bytes(b"x" * 32)
    with pytest.raises(KeyringUnavailable, match="contains another key"):
        keyring.copy_from(backup)


def test_keys_are_not_copied_from_a_folder_that_does_not_exist(folder, tmp_path):
    with pytest.raises(KeyringUnavailable, match="mistyped is not a folder; name the one with the keys"):
        FileKeyring(folder).copy_from(tmp_path / "mistyped")
    assert not folder.exists()


def test_an_invalid_tenant_id_cannot_reach_another_key(keyring):
    for name in ("../evil", "", "a/b", "ACME", "{tenant}"):
        with pytest.raises(KeyRefused):
            keyring.new_data_key(TenantId(name))


def test_a_sealed_value_opens_only_unchanged_for_its_tenant_and_context(keyring):
    sealer = Sealer(DataKeys(keyring))
    sealed = sealer.seal(ACME, b"a red ball", "video_1")
    assert Sealer(DataKeys(keyring)).open(ACME, sealed, "video_1") == b"a red ball"
    keyring.new_data_key(GLOBEX)
    flipped = sealed[:-1] + bytes([sealed[-1] ^ 1])
    for tenant_id, value, context in (
        (GLOBEX, sealed, "video_1"),
        (ACME, sealed, "video_2"),
        (ACME, flipped, "video_1"),
        (ACME, b"\x02" + sealed[1:], "video_1"),
    ):
        with pytest.raises(KeyRefused):
            sealer.open(tenant_id, value, context)


def test_a_data_key_is_used_for_an_hour(keyring):
    now = 0.0
    keys = DataKeys(keyring, clock=lambda: now)
    first = keys.encrypting_key(ACME)
    assert keys.encrypting_key(ACME) == first
    now = 3601.0
    assert keys.encrypting_key(ACME) != first
    assert keys.decrypting_key(ACME, first.wrapped) == first.plain


def test_forgetting_a_tenant_drops_its_cached_data_keys_and_no_others(keyring):
    keys = DataKeys(keyring)
    acme, globex = keys.encrypting_key(ACME), keys.encrypting_key(GLOBEX)
    keys.forget(ACME)
    with pytest.raises(KeyRefused):
        keys.decrypting_key(ACME, acme.wrapped)
    assert keys.encrypting_key(GLOBEX) == globex


class SlowKeyring:
    """A keyring whose calls for one tenant wait for the test."""

    def __init__(self, keyring, slow_tenant):
        self._keyring = keyring
        self._slow_tenant = slow_tenant
        self.is_called, self.may_return = threading.Event(), threading.Event()

    def new_data_key(self, tenant_id):
        key = self._keyring.new_data_key(tenant_id)
        if tenant_id == self._slow_tenant:
            self.is_called.set()
            assert self.may_return.wait(60)
        return key

    def __getattr__(self, name):
        return getattr(self._keyring, name)


def test_a_slow_keyring_does_not_block_tenants_with_a_cached_key(keyring):
    slow = SlowKeyring(keyring, GLOBEX)
    keys = DataKeys(slow)
    cached = keys.encrypting_key(ACME)
    waiting = threading.Thread(target=keys.encrypting_key, args=(GLOBEX,))
    waiting.start()
    assert slow.is_called.wait(60)
    assert keys.encrypting_key(ACME) == cached
    assert keys.decrypting_key(ACME, cached.wrapped) == cached.plain
    slow.may_return.set()
    waiting.join(60)


def test_a_key_that_arrives_after_its_tenant_was_forgotten_is_not_cached(keyring):
    slow, late = SlowKeyring(keyring, ACME), []
    keys = DataKeys(slow)
    waiting = threading.Thread(target=lambda: late.append(keys.encrypting_key(ACME)))
    waiting.start()
    assert slow.is_called.wait(60)
    keys.forget(ACME)
    slow.may_return.set()
    waiting.join(60)
    with pytest.raises(KeyRefused):
        keys.decrypting_key(ACME, late[0].wrapped)


def test_an_opened_data_key_is_asked_for_again_after_an_hour(folder):
    now = 0.0
    keyring = FileKeyring(folder)
    wrapped = keyring.new_data_key(ACME).wrapped
    keys = DataKeys(keyring, clock=lambda: now)
    assert keys.decrypting_key(ACME, wrapped)
    keyring.forget(ACME)  # in another process
    assert keys.decrypting_key(ACME, wrapped)
    now += 3601
    with pytest.raises(KeyRefused):
        keys.decrypting_key(ACME, wrapped)
