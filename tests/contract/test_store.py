"""What every ObjectStore promises: whole or not at all, unreadable to others, gone when deleted."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from filmgate.errors import LinkInvalid, ObjectCorrupt, ObjectNotFound, StoreUnavailable
from filmgate.jobs import JobId, TenantId, new_job_id
from filmgate.keyring.files import FileKeyring
from filmgate.store.base import ObjectName, live_part, live_prefix
from filmgate.store.local import LINK_PREFIX, LocalStore

ACME, GLOBEX = TenantId("acme"), TenantId("globex")
JOB = new_job_id()
CLIP = ObjectName(ACME, JOB, "clip-1.mp4")
SECRET = b"plain text of a clip that nobody may find on disk "


@pytest.fixture
def keyring(tmp_path):
    return FileKeyring(tmp_path / "keys")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "objects"


@pytest.fixture
def store(folder, keyring):
    return LocalStore(folder, keyring)


def read(store, name, *span):
    return b"".join(store.read(name, *span))


def test_what_was_put_is_read_whole_and_in_ranges(store):
    stored = store.put(CLIP, [SECRET] * 30_000)
    assert (stored.size_bytes, store.stat(CLIP).size_bytes) == (1_500_000, 1_500_000)
    whole = read(store, CLIP)
    assert whole == SECRET * 30_000
    assert read(store, CLIP, 1_048_000, 1_049_000) == whole[1_048_000:1_049_000]
    assert read(store, CLIP, 1_499_999) == whole[-1:]
    assert read(store, CLIP, 1_400_000, 9_999_999) == whole[1_400_000:]
    assert read(store, CLIP, 2_000_000) == b""


def test_a_stream_that_breaks_leaves_nothing_and_the_old_object_stands(store, folder):
    store.put(CLIP, [b"old"])

    def broken():
        yield b"new" * 1_000_000
        raise RuntimeError("the encoder died")

    with pytest.raises(RuntimeError, match="encoder died"):
        store.put(CLIP, broken())
    assert read(store, CLIP) == b"old"
    assert list((folder / ".incoming").iterdir()) == []


def test_a_new_object_of_the_same_name_replaces_the_old_in_one_step(store):
    store.put(CLIP, [b"old" * 1_000_000])
    reading = store.read(CLIP)
    first = next(reading)
    store.put(CLIP, [b"new"])
    assert first + b"".join(reading) == b"old" * 1_000_000
    assert read(store, CLIP) == b"new"


def test_an_object_that_is_not_there_is_missed_before_the_first_byte(store):
    for missing in (CLIP, ObjectName(ACME, JOB, "live/1/000000")):
        with pytest.raises(ObjectNotFound):
            store.read(missing)
        with pytest.raises(ObjectNotFound):
            store.stat(missing)


def test_deleting_a_prefix_keeps_the_rest_and_deleting_a_job_leaves_no_file(store, folder):
    for number in range(3):
        store.put(ObjectName(ACME, JOB, live_part(2, number)), [b"x"])
    store.put(ObjectName(ACME, JOB, live_part(21, 0)), [b"x"])
    store.put(CLIP, [b"clip"])
    parts = [stored.name.part for stored in store.parts(ACME, JOB, live_prefix(2))]
    assert parts == ["live/2/000000", "live/2/000001", "live/2/000002"]
    assert store.delete(ACME, JOB, live_prefix(2)) == 3
    assert [stored.name.part for stored in store.parts(ACME, JOB)] == ["clip-1.mp4", "live/21/000000"]
    assert store.delete(GLOBEX, JOB) == 0
    assert (store.delete(ACME, JOB), store.delete(ACME, JOB)) == (2, 0)
    assert not (folder / ACME / JOB).exists()


def test_retention_can_list_every_job_that_has_an_object(store):
    other = new_job_id()
    store.put(CLIP, [b"x"])
    store.put(ObjectName(ACME, other, "source"), [b"x"])
    store.put(ObjectName(GLOBEX, other, "source"), [b"x"])
    assert sorted(store.jobs(ACME)) == sorted([JOB, other])
    assert list(store.jobs(TenantId("nobody"))) == []


def test_no_plain_byte_reaches_the_disk_and_no_file_is_readable_by_others(store, tmp_path):
    store.put(CLIP, [SECRET] * 1000)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert all(SECRET[:16] not in path.read_bytes() for path in files)
    assert all(path.stat().st_mode & 0o077 == 0 for path in files)


def test_an_object_moved_to_another_name_or_tenant_does_not_open(store, folder, keyring):
    store.put(CLIP, [SECRET])
    keyring.new_data_key(GLOBEX)
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


def test_another_process_reads_what_this_one_wrote(store, folder, tmp_path):
    store.put(CLIP, [SECRET])
    assert read(LocalStore(folder, FileKeyring(tmp_path / "keys")), CLIP) == SECRET


def test_a_forgotten_tenant_cannot_be_read_any_more(store, folder, keyring):
    store.put(CLIP, [SECRET])
    keyring.forget(ACME)
    with pytest.raises(ObjectCorrupt):
        read(LocalStore(folder, keyring), CLIP)


@pytest.mark.parametrize(
    "part", ["", "..", "../x", "/x", "a//b", "a/../b", ".hidden", "A", "x" * 101, "a/b/c/d/e", "a\n"]
)
def test_no_name_can_leave_its_job(part):
    with pytest.raises(ValueError, match="not an object name"):
        ObjectName(ACME, JOB, part)
    with pytest.raises(ValueError, match="not an object name"):
        ObjectName(TenantId(".."), JOB, "x")
    with pytest.raises(ValueError, match="not an object name"):
        ObjectName(ACME, JobId("../video"), "x")


def test_links_of_a_store_name_its_objects_and_survive_a_restart(store, folder, keyring):
    link = store.link(CLIP, 900)
    assert LocalStore(folder, keyring).resolve(link.removeprefix(LINK_PREFIX)) == CLIP
    with pytest.raises(LinkInvalid):
        store.resolve("x" + link.removeprefix(LINK_PREFIX)[1:])


def test_room_turns_low_before_the_disk_is_full(folder, keyring):
    assert not LocalStore(folder, keyring, min_free_bytes=1).room().is_low
    assert LocalStore(folder, keyring, min_free_bytes=1 << 60).room().is_low


def test_leftovers_of_a_killed_process_are_swept_after_a_day(store, folder, keyring):
    for name, age in (("young", 60), ("old", 90_000)):
        leftover = folder / ".incoming" / name
        leftover.write_bytes(b"half")
        os.utime(leftover, (leftover.stat().st_atime - age, leftover.stat().st_mtime - age))
    LocalStore(folder, keyring)
    assert [path.name for path in (folder / ".incoming").iterdir()] == ["young"]


def test_a_store_that_cannot_be_used_says_so(store, folder):
    (folder / ACME).write_text("a file where a folder should be")
    with pytest.raises(StoreUnavailable):
        store.put(CLIP, [b"x"])


def test_listing_and_deleting_stay_calm_while_others_write_and_delete(store):
    """A worker adds and removes fragments while a replica looks on."""
    is_done = threading.Event()

    def churn():
        for number in range(150):
            store.put(ObjectName(ACME, JOB, live_part(1 + number % 3, 0)), [b"x"], is_durable=False)
            store.delete(ACME, JOB, live_prefix(1 + number % 3))
        is_done.set()

    with ThreadPoolExecutor(2) as pool:
        churning = pool.submit(churn)
        while not is_done.is_set() and not churning.done():
            store.parts(ACME, JOB)
            store.delete(ACME, JOB, "live/9")
        churning.result(30)
    assert store.parts(ACME, JOB) == []
