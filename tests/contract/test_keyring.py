"""What every Keyring promises: keys of one tenant open nothing of another's."""

import threading

import pytest

from filmgate.errors import KeyRefused, KeyringUnavailable
from filmgate.jobs import TenantId
from filmgate.store.keys.cache import DataKeyCache
from filmgate.store.keys.files import FileKeyring
from filmgate.store.keys.sealing import Sealer
from tests.aws import client, make_keys

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
    return KmsKeyring(client("kms", aws_url), make_keys(aws_url))


def test_a_data_key_opens_for_its_tenant_alone(keyring):
    key = keyring.new_data_key(ACME)
    keyring.new_data_key(GLOBEX)
    assert keyring.open_data_key(ACME, key.wrapped) == key.plain
    for tenant_id, wrapped in ((GLOBEX, key.wrapped), (ACME, key.wrapped[:-1] + b"\0"), (ACME, b"short")):
        with pytest.raises(KeyRefused):
            keyring.open_data_key(tenant_id, wrapped)


def test_forgetting_a_tenant_makes_its_data_unreadable(keyring):
    key = keyring.new_data_key(ACME)
    keyring.forget(ACME)
    keyring.forget(ACME)
    with pytest.raises(KeyRefused):
        keyring.open_data_key(ACME, key.wrapped)


def test_key_files_belong_to_their_owner_alone(folder):
    keyring = FileKeyring(folder)
    key = keyring.new_data_key(ACME)
    [file] = folder.iterdir()
    assert (file.stat().st_mode & 0o777, folder.stat().st_mode & 0o777) == (0o600, 0o700)
    file.chmod(0o640)
    with pytest.raises(KeyringUnavailable, match="chmod 600"):
        keyring.open_data_key(ACME, key.wrapped)


def test_processes_that_make_the_same_key_at_once_agree_on_one(folder):
    barrier, keys = threading.Barrier(8), []

    def make():
        keyring = FileKeyring(folder)
        barrier.wait(60)
        keys.append(keyring.new_data_key(ACME))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [FileKeyring(folder).open_data_key(ACME, k.wrapped) for k in keys] == [k.plain for k in keys]
    assert len(list(folder.iterdir())) == 1


def test_a_tenant_name_cannot_reach_another_key(keyring):
    for name in ("../evil", "", "a/b", "ACME", "{tenant}"):
        with pytest.raises(KeyRefused):
            keyring.new_data_key(TenantId(name))


def test_a_sealed_value_is_bound_to_tenant_place_and_every_byte(keyring):
    sealer = Sealer(keyring)
    sealed = sealer.seal(ACME, b"a red ball", "video_1")
    assert Sealer(keyring).open(ACME, sealed, "video_1") == b"a red ball"
    keyring.new_data_key(GLOBEX)
    flipped = sealed[:-1] + bytes([sealed[-1] ^ 1])
    for tenant_id, value, place in (
        (GLOBEX, sealed, "video_1"),
        (ACME, sealed, "video_2"),
        (ACME, flipped, "video_1"),
        (ACME, b"\x02" + sealed[1:], "video_1"),
    ):
        with pytest.raises(KeyRefused):
            sealer.open(tenant_id, value, place)


def test_a_data_key_serves_an_hour_before_the_keyring_is_asked_again(keyring):
    now = 0.0
    cache = DataKeyCache(keyring, clock=lambda: now)
    first = cache.encrypting_key(ACME)
    assert cache.encrypting_key(ACME) == first
    now = 3601.0
    assert cache.encrypting_key(ACME) != first
    assert cache.decrypting_key(ACME, first.wrapped) == first.plain


def test_a_slow_keyring_holds_up_nobody_whose_key_is_known(keyring):
    is_asked, may_answer = threading.Event(), threading.Event()

    class Slow:
        def new_data_key(self, tenant_id):
            if tenant_id == GLOBEX:
                is_asked.set()
                assert may_answer.wait(60)
            return keyring.new_data_key(tenant_id)

    cache = DataKeyCache(Slow())
    known = cache.encrypting_key(ACME)
    asking = threading.Thread(target=cache.encrypting_key, args=(GLOBEX,))
    asking.start()
    assert is_asked.wait(60)
    assert cache.encrypting_key(ACME) == known
    assert cache.decrypting_key(ACME, known.wrapped) == known.plain
    may_answer.set()
    asking.join(60)
