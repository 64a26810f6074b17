"""Disk space in the model cache: reserved by pulls that run at once, and freed after a killed eviction."""

import shutil
import threading

import pytest

from filmgate.errors import ModelError, StoreFull
from filmgate.models.weights import cache, fetch
from filmgate.models.weights.entry import CacheEntry
from filmgate.models.weights.locks import acquire_lock
from tests.integration.test_model_cache import FILES, RANGE, WEIGHTS, ModelServer, is_same

PULL_BYTES = sum(FILES.values()) + 2 * RANGE
"""What a pull needs on a disk that counts blocks, with its journal and its manifest."""


@pytest.fixture
def site(tmp_path):
    site = ModelServer(tmp_path)
    with site.server.running():
        yield site


@pytest.fixture
def disk(site, monkeypatch):
    """Gives the cache a disk of a size in bytes."""
    usage, cache = shutil.disk_usage, site.folder / "cache"

    def resize(total):
        def measure(folder):
            used = sum(path.stat().st_blocks * 512 for path in cache.rglob("*") if path.is_file())
            return usage(folder)._replace(total=total, used=used, free=total - used)

        monkeypatch.setattr("filmgate.models.weights.cache.shutil.disk_usage", measure)

    return resize


def test_two_concurrent_pulls_do_not_reserve_the_same_disk_space(site, disk, monkeypatch):
    """The second finds an empty disk: the first has reserved its space and downloaded nothing."""
    first, second, store = site.add("first"), site.add("second"), site.cache()
    disk(2 * sum(FILES.values()) - RANGE)
    has_reserved, may_go_on, acquired = threading.Event(), threading.Event(), []
    run = fetch.Fetch.run

    def wait(fetching, report=None):
        has_reserved.set()
        assert may_go_on.wait(60)
        run(fetching, report)

    monkeypatch.setattr(fetch.Fetch, "run", wait)
    work = threading.Thread(target=lambda: acquired.append(store.acquire(first)), daemon=True)
    work.start()
    assert has_reserved.wait(60)
    try:
        with pytest.raises(StoreFull, match="bytes of disk are free and not reserved by other pulls"):
            site.cache().acquire(second)
    finally:
        may_go_on.set()
        work.join(60)
    assert is_same(acquired[0], site, first)


def test_a_pull_that_was_abandoned_does_not_reserve_disk_space_for_ever(site, disk):
    store, broken = site.cache(), site.add("broken")
    site.source(broken).unlink()
    with pytest.raises(ModelError):
        store.acquire(broken)
    disk(PULL_BYTES)
    acquired = store.acquire(site.add("intact"))
    assert [entry.model for entry in store.list_entries()] == [acquired.folder]


@pytest.mark.parametrize("is_seen", [True, False])
def test_a_pull_that_is_published_while_it_is_measured_reserves_nothing(site, disk, monkeypatch, is_seen):
    """Its folder is renamed before its files are listed, or after."""
    store, other = site.cache(), site.add("other")
    store.acquire(other).lock.close()
    (entry,) = store.list_entries()
    entry.model.rename(entry.partial)
    measure = cache._allocated_bytes

    def publish_meanwhile(folder):
        is_other = folder == entry.partial and folder.exists()
        if is_other:
            entry.partial.rename(entry.model)
        if is_other and is_seen:
            raise FileNotFoundError(folder)
        return measure(folder)

    monkeypatch.setattr(cache, "_allocated_bytes", publish_meanwhile)
    disk(sum(FILES.values()) + PULL_BYTES)
    acquired = store.acquire(site.add("new"))
    assert {each.model for each in store.list_entries()} == {entry.model, acquired.folder}


def test_a_resumed_pull_needs_space_only_for_what_is_missing(site, disk):
    store, location = site.cache(), site.add()
    aside = site.source(location).rename(site.folder / "aside")
    with pytest.raises(ModelError):
        store.acquire(location)
    aside.rename(site.source(location))
    disk(PULL_BYTES)
    assert is_same(store.acquire(location), site, location)


def killed_eviction(store, location, monkeypatch):
    """Evicts a model in a process that dies before the files are deleted. Returns what it leaves."""
    entry = next(entry for entry in store.list_entries() if entry.location == location)

    def die(_folder):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("filmgate.models.weights.entry.shutil.rmtree", die)
        store.evict(location)
    return entry.trash


@pytest.mark.parametrize("makes_room", ["another pull", "a pull of the same model", "shrink"])
def test_what_a_killed_eviction_left_is_deleted_when_room_is_made(site, disk, monkeypatch, makes_room):
    store, old = site.cache(), site.add("old")
    store.acquire(old).lock.close()
    trash = killed_eviction(store, old, monkeypatch)
    assert (trash / "model" / WEIGHTS).is_file()
    disk(PULL_BYTES)
    if makes_room == "shrink":
        assert store.shrink(0) == []
    else:
        location = old if makes_room == "a pull of the same model" else site.add("new")
        assert is_same(store.acquire(location), site, location)
    assert not trash.exists()


def test_an_eviction_that_runs_is_left_alone(site, monkeypatch):
    store, old = site.cache(), site.add("old")
    store.acquire(old).lock.close()
    trash = killed_eviction(store, old, monkeypatch)
    with acquire_lock(CacheEntry(site.folder / "cache", old).lock_path):
        store.shrink(0)
        assert (trash / "model" / WEIGHTS).is_file()
    store.shrink(0)
    assert not trash.exists()
