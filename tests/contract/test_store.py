"""The contract of every ObjectStore: atomic writes, encrypted per tenant, complete deletes."""

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from filmgate.errors import LinkInvalid, ObjectNotFound
from filmgate.jobs import JobId, TenantId, new_job_id
from filmgate.store.base import ObjectName, live_part, live_prefix
from tests.stores import parts_of

ACME, GLOBEX = TenantId("acme"), TenantId("globex")
JOB = new_job_id()
CLIP = ObjectName(ACME, JOB, "clip-1.mp4")
SECRET = b"plain text of a clip that is encrypted when stored"


@pytest.fixture
def store(rig):
    return rig.store


def read(store, name, *span):
    return b"".join(store.read(name, *span))


def test_an_object_is_read_whole_and_in_ranges(store):
    stored = store.put(CLIP, [SECRET] * 30_000)
    assert (stored.size_bytes, store.stat(CLIP).size_bytes) == (1_500_000, 1_500_000)
    whole = read(store, CLIP)
    assert whole == SECRET * 30_000
    assert read(store, CLIP, 1_048_000, 1_049_000) == whole[1_048_000:1_049_000]
    assert read(store, CLIP, 1_499_999) == whole[-1:]
    assert read(store, CLIP, 1_400_000, 9_999_999) == whole[1_400_000:]
    assert read(store, CLIP, 2_000_000) == b""


@pytest.mark.parametrize("error", [RuntimeError, OSError])
def test_a_failed_write_leaves_nothing_and_keeps_the_old_object(rig, store, error):
    """The error is the caller's, even if it is one of another disk."""
    store.put(CLIP, [b"old"])

    def broken():
        yield b"new" * 3_000_000
        raise error("the encoder died")

    with pytest.raises(error, match="encoder died"):
        store.put(CLIP, broken())
    assert read(store, CLIP) == b"old"
    assert rig.unpublished() == []


@pytest.mark.parametrize("size", [0, 1, 5 << 20, (5 << 20) + 1, 11_000_000])
def test_objects_of_any_size_are_read_unchanged_and_have_a_digest(store, size):
    data = hashlib.shake_128(b"clip").digest(size)
    stored = store.put(CLIP, (data[at : at + 700_001] for at in range(0, size, 700_001)))
    assert (stored.size_bytes, stored.sha256) == (size, hashlib.sha256(data).hexdigest())
    assert read(store, CLIP) == data
    assert [(part.name, part.size_bytes) for part in parts_of(store, ACME, JOB)] == [(CLIP, size)]


@pytest.mark.parametrize("size", [0, 10, (5 << 20) - 3, 5 << 20, 11_000_000])
def test_a_late_head_is_stored_first(rig, store, size):
    body, events = hashlib.shake_128(b"body").digest(size), []

    def chunks():
        yield from (body[at : at + 700_001] for at in range(0, size, 700_001))
        events.append("the body has ended")

    def head():
        assert events == ["the body has ended"]
        return b"index"

    stored = store.put(CLIP, chunks(), late_head=head, head_bytes=5)
    assert (stored.size_bytes, read(store, CLIP)) == (size + 5, b"index" + body)
    assert rig.unpublished() == []


def test_a_late_head_that_fails_leaves_nothing(rig, store):
    def head():
        raise RuntimeError("the encoder died")

    with pytest.raises(RuntimeError, match="encoder died"):
        store.put(CLIP, [b"x" * 6_000_000], late_head=head, head_bytes=5)
    assert (parts_of(store, ACME, JOB), rig.unpublished()) == ([], [])


def test_ranges_across_parts_and_segments_are_exact(store):
    data = hashlib.shake_128(b"long clip").digest(11_000_000)
    store.put(CLIP, [data])
    for start, stop in ((5_242_870, 5_242_890), (0, 1), (10_485_760, None), (10_999_999, 11_000_000), (7, 7)):
        assert read(store, CLIP, start, stop) == data[start:stop]


def test_a_write_replaces_an_object_in_one_step(store):
    store.put(CLIP, [b"old" * 3_000_000])
    reading = store.read(CLIP)
    first = next(reading)
    store.put(CLIP, [b"new"])
    assert first + b"".join(reading) == b"old" * 3_000_000
    assert read(store, CLIP) == b"new"


def test_a_missing_object_raises_before_the_first_byte(store):
    for missing in (CLIP, ObjectName(ACME, JOB, "live/1/000000")):
        for span in ((), (5, 9), (5, 5)):
            with pytest.raises(ObjectNotFound):
                store.read(missing, *span)
        with pytest.raises(ObjectNotFound):
            store.stat(missing)


def test_deleting_a_prefix_keeps_the_rest_and_deleting_a_job_deletes_everything(rig, store):
    for number in range(3):
        store.put(ObjectName(ACME, JOB, live_part(2, number)), [b"x"])
    store.put(ObjectName(ACME, JOB, live_part(21, 0)), [b"x"])
    store.put(CLIP, [b"clip"])
    assert store.delete(ACME, JOB, live_prefix(2)) == 3
    assert [stored.name.part for stored in parts_of(store, ACME, JOB)] == ["clip-1.mp4", "live/21/000000"]
    assert store.delete(GLOBEX, JOB) == 0
    assert (store.delete(ACME, JOB), store.delete(ACME, JOB)) == (2, 0)
    assert rig.is_empty(ACME, JOB)


def test_every_job_that_has_an_object_is_listed_with_its_objects(store):
    other = new_job_id()
    store.put(CLIP, [b"x"])
    store.put(ObjectName(ACME, other, "source"), [b"x"])
    store.put(ObjectName(GLOBEX, other, "source"), [b"x"])
    expected = sorted([(JOB, [CLIP]), (other, [ObjectName(ACME, other, "source")])])
    assert [(job_id, [part.name for part in parts]) for job_id, parts in store.jobs(ACME)] == expected
    assert list(store.jobs(TenantId("unknown"))) == []


def test_another_process_can_read_the_object(rig, store):
    store.put(CLIP, [SECRET])
    assert read(rig.open(), CLIP) == SECRET


@pytest.mark.parametrize(
    "part", ["", "..", "../x", "/x", "a//b", "a/../b", ".hidden", "A", "x" * 101, "a/b/c/d/e", "a\n"]
)
def test_a_name_cannot_leave_its_job(part):
    with pytest.raises(ValueError, match="not an object name"):
        ObjectName(ACME, JOB, part)
    with pytest.raises(ValueError, match="not an object name"):
        ObjectName(TenantId(".."), JOB, "x")
    with pytest.raises(ValueError, match="not an object name"):
        ObjectName(ACME, JobId("../video"), "x")


def test_a_forged_token_is_rejected(store):
    with pytest.raises(LinkInvalid):
        store.resolve("x" * 80)


def test_a_sweep_keeps_published_objects(rig, store):
    store.put(CLIP, [SECRET])
    assert store.sweep(0.0) == 0
    assert (read(store, CLIP), rig.unpublished()) == (SECRET, [])


def test_listing_and_deleting_work_while_others_write_and_delete(rig, store):
    """One thread writes and deletes fragments while another lists and deletes."""
    is_done = threading.Event()

    def churn():
        for number in range(rig.churns):
            store.put(ObjectName(ACME, JOB, live_part(1 + number % 3, 0)), [b"x"], is_durable=False)
            store.delete(ACME, JOB, live_prefix(1 + number % 3))
        is_done.set()

    with ThreadPoolExecutor(2) as pool:
        churning = pool.submit(churn)
        while not is_done.is_set() and not churning.done():
            parts_of(store, ACME, JOB)
            store.delete(ACME, JOB, "live/9")
        churning.result(60)
    assert parts_of(store, ACME, JOB) == []
