"""What encrypted files promise beyond the contract: nothing to read on the disk, nothing to move or alter."""

import os

import pytest

from filmgate.errors import LinkInvalid, ObjectCorrupt, StoreUnavailable
from filmgate.jobs import TenantId, new_job_id
from filmgate.store.base import ObjectName
from filmgate.store.keys.cache import DataKeys
from filmgate.store.keys.files import FileKeyring
from filmgate.store.local.store import LINK_PREFIX, LocalStore

ACME, GLOBEX = TenantId("acme"), TenantId("globex")
JOB = new_job_id()
CLIP = ObjectName(ACME, JOB, "clip-1.mp4")
SECRET = b"plain text of a clip that nobody may find on disk "


@pytest.fixture
def keys(tmp_path):
    return DataKeys(FileKeyring(tmp_path / "keys"))


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "objects"


@pytest.fixture
def store(folder, keys):
    return LocalStore(folder, keys)


def read(store, name):
    return b"".join(store.read(name))


def test_no_plain_byte_reaches_the_disk_and_no_file_is_readable_by_others(store, tmp_path):
    store.put(CLIP, [SECRET] * 1000)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert all(SECRET[:16] not in path.read_bytes() for path in files)
    assert all(path.stat().st_mode & 0o077 == 0 for path in files)


def test_an_object_moved_to_another_name_or_tenant_does_not_open(store, folder, keys):
    store.put(CLIP, [SECRET])
    keys.encrypting_key(GLOBEX)
    sealed = (folder / str(CLIP)).read_bytes()
    for name in (ObjectName(ACME, JOB, "clip-2.mp4"), ObjectName(GLOBEX, JOB, "clip-1.mp4")):
        (folder / str(name)).parent.mkdir(parents=True, exist_ok=True)
        (folder / str(name)).write_bytes(sealed)
        with pytest.raises(ObjectCorrupt):
            read(store, name)


@pytest.mark.parametrize(
    "damage",
    [lambda b: b[:-1], lambda b: b[:50] + bytes([b[50] ^ 1]) + b[51:], lambda b: b"junk", lambda b: b""],
)
def test_damaged_objects_are_refused_not_served(store, folder, damage):
    store.put(CLIP, [SECRET] * 10)
    path = folder / str(CLIP)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ObjectCorrupt):
        read(store, CLIP)


def test_a_forgotten_tenant_cannot_be_read_any_more(store, folder, keys):
    store.put(CLIP, [SECRET])
    keys.forget(ACME)
    with pytest.raises(ObjectCorrupt):
        read(store, CLIP)


def test_links_of_a_store_name_its_objects_and_survive_a_restart(store, folder, keys):
    link = store.link(CLIP, 900)
    assert LocalStore(folder, keys).resolve(link.removeprefix(LINK_PREFIX)) == CLIP
    with pytest.raises(LinkInvalid):
        store.resolve("x" + link.removeprefix(LINK_PREFIX)[1:])


def test_room_turns_low_before_the_disk_is_full(folder, keys):
    assert not LocalStore(folder, keys, min_free_bytes=1).room().is_low
    assert LocalStore(folder, keys, min_free_bytes=1 << 60).room().is_low


def test_leftovers_of_a_killed_process_are_swept_after_a_day(store, folder, keys):
    for name, age in (("young", 60), ("old", 90_000)):
        leftover = folder / ".incoming" / name
        leftover.write_bytes(b"half")
        os.utime(leftover, (leftover.stat().st_atime - age, leftover.stat().st_mtime - age))
    LocalStore(folder, keys)
    assert [path.name for path in (folder / ".incoming").iterdir()] == ["young"]


def test_a_store_that_cannot_be_used_says_so(store, folder):
    (folder / ACME).write_text("a file where a folder should be")
    with pytest.raises(StoreUnavailable):
        store.put(CLIP, [b"x"])
