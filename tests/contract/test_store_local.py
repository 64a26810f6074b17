"""Guarantees of the local store beyond the contract: files are encrypted, and changes are detected."""

import os
import shutil
from pathlib import Path

import pytest

from filmgate.errors import LinkInvalid, ObjectCorrupt, StoreUnavailable
from filmgate.jobs import TenantId, new_job_id
from filmgate.store.base import ObjectName
from filmgate.store.keys.data_keys import DataKeys
from filmgate.store.keys.files import FileKeyring
from filmgate.store.local.store import LINK_PREFIX, LocalStore
from tests.stores import parts_of

ACME, GLOBEX = TenantId("acme"), TenantId("globex")
JOB = new_job_id()
CLIP = ObjectName(ACME, JOB, "clip-1.mp4")
SECRET = b"plain text of a clip that must not be on disk "


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


def test_a_deletion_is_durable_where_its_entries_were(store, folder, keys, flushed):
    """After a power failure, a deleted clip and a destroyed key must not exist again."""
    live = ObjectName(ACME, JOB, "live/1/000001")
    for name in (CLIP, live, ObjectName(ACME, JOB, "live/1/000002")):
        store.put(name, [SECRET])
    flushed.clear()
    store.delete(ACME, JOB, prefix="live/1/000001")
    assert folder / ACME / JOB / "live/1" in flushed
    store.delete(ACME, JOB)
    assert folder / ACME in flushed
    flushed.clear()
    keys.forget(ACME)
    assert flushed == [folder.parent / "keys"]


@pytest.fixture
def flushed(monkeypatch):
    """The folders and files that were flushed to disk."""
    paths, fsync = [], os.fsync

    def flush(descriptor):
        paths.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", flush)
    return paths


def test_an_object_moved_to_another_name_or_tenant_is_corrupt(store, folder, keys):
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
def test_a_damaged_object_is_corrupt(store, folder, damage):
    store.put(CLIP, [SECRET] * 10)
    path = folder / str(CLIP)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ObjectCorrupt):
        read(store, CLIP)


def test_damaged_objects_and_files_of_others_are_deleted_with_their_job(store, folder):
    store.put(CLIP, [SECRET])
    home = (folder / str(CLIP)).parent
    for name in ("empty", "Not A Part", "x" * 101):
        (home / name).write_bytes(b"")
    (home.parent / "lost+found").mkdir()
    os.truncate(folder / str(CLIP), 3)
    assert [(part.name.part, part.size_bytes) for part in parts_of(store, ACME, JOB)] == [
        ("clip-1.mp4", 0),
        ("empty", 0),
    ]
    assert list(dict(store.jobs(ACME))) == [JOB]
    assert store.delete(ACME, JOB) == 4
    assert not home.exists()


def test_a_damaged_header_does_not_stop_the_rewrapping_of_others(store, folder, tmp_path):
    keyring, whole = FileKeyring(tmp_path / "keys"), ObjectName(ACME, JOB, "clip-2.mp4")
    for name in (CLIP, whole):
        store.put(name, [SECRET])
    os.truncate(folder / str(CLIP), 30)
    keyring.rotate(ACME)
    assert store.rewrap(ACME, lambda wrapped: keyring.rewrap(ACME, wrapped)) == 1
    keyring.prune(ACME)
    assert read(LocalStore(folder, DataKeys(keyring)), whole) == SECRET


def test_objects_cannot_be_read_after_the_key_is_deleted(store, folder, keys):
    store.put(CLIP, [SECRET])
    keys.forget(ACME)
    with pytest.raises(ObjectCorrupt):
        read(store, CLIP)


def test_links_stay_valid_after_a_restart(store, folder, keys):
    store.put(CLIP, [SECRET])
    token = store.link(CLIP, 900).removeprefix(LINK_PREFIX)
    assert LocalStore(folder, keys).resolve(token) == CLIP
    changed = "y" if token[0] == "x" else "x"
    with pytest.raises(LinkInvalid):
        store.resolve(changed + token[1:])


def test_a_reader_of_the_objects_without_the_keys_cannot_make_a_link(store, folder, tmp_path):
    store.put(CLIP, [SECRET])
    shutil.copytree(folder, tmp_path / "stolen")
    thief = LocalStore(tmp_path / "stolen", DataKeys(FileKeyring(tmp_path / "own keys")))
    assert thief.identity == store.identity
    with pytest.raises(LinkInvalid):
        store.resolve(thief.link(CLIP, 900).removeprefix(LINK_PREFIX))


def test_the_store_is_nearly_full_below_the_configured_free_space(folder, keys):
    assert not LocalStore(folder, keys, min_free_bytes=1).is_nearly_full()
    assert LocalStore(folder, keys, min_free_bytes=1 << 60).is_nearly_full()


def test_drafts_of_a_killed_process_are_deleted_after_a_day(store, folder, keys):
    for name, age in (("young", 60), ("old", 90_000)):
        draft = folder / ".incoming" / name
        draft.write_bytes(b"half")
        os.utime(draft, (draft.stat().st_atime - age, draft.stat().st_mtime - age))
    LocalStore(folder, keys)
    assert [path.name for path in (folder / ".incoming").iterdir()] == ["young"]


def test_a_broken_folder_makes_the_store_unavailable(store, folder):
    (folder / ACME).write_text("a file instead of a folder")
    with pytest.raises(StoreUnavailable):
        store.put(CLIP, [b"x"])
