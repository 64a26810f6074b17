"""The model cache with a server that counts bytes: kills, corruption, sharing, eviction."""

import errno
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from filmgate.errors import ModelError, StoreFull, StoreUnavailable
from filmgate.models.weights import ensure_local, fetch, open_cache
from filmgate.models.weights.entry import CacheEntry, weights_digest
from filmgate.models.weights.location import parse_location
from filmgate.models.weights.manifest import FileRecord, Manifest, build_manifest
from filmgate.settings import ModelSettings
from tests.rated_bucket import RatedBucket
from tests.waiting import wait_until

RANGE = 1 << 16
QUICK = 1e9
WEIGHTS = "transformer/weights.safetensors"
FILES = {
    "model_index.json": 40,
    WEIGHTS: 40 * RANGE + 77,
    "vae/weights.safetensors": 3 * RANGE,
    "empty.txt": 0,
}


class ModelServer:
    """A bucket of models on disk, served with a rate limit, and caches that pull from it."""

    def __init__(self, folder):
        self.folder = folder
        self.server = RatedBucket(folder / "bucket", QUICK)

    def add(self, name="wan", version=1, files=FILES):
        folder = self.folder / "bucket/film/models" / name / f"v{version}"
        for path, size in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(secrets.token_bytes(size))
        (folder / "manifest.json").write_text(build_manifest(folder).to_json())
        return parse_location(f"s3://film/models/{name}/v{version}/")

    def source(self, location, path=WEIGHTS):
        return self.folder / "bucket" / location.bucket / location.prefix / path

    def settings(self, **given):
        known = {"endpoint": self.server.url, "region": "eu-west-1", "cache": str(self.folder / "cache")}
        return ModelSettings(**known | {"range_bytes": RANGE, "connections": 4} | given)

    def cache(self, **given):
        settings = self.settings(**given)
        return open_cache(settings, self.folder)

    def pull_process(self, location):
        names = self.settings().model_dump()
        environ = {f"FILMGATE_MODELS__{name.upper()}": str(value) for name, value in names.items()}
        command = [sys.executable, "-m", "filmgate", "models", "pull", location.url, "--json"]
        return subprocess.Popen(command, env=os.environ | environ, stdout=subprocess.PIPE, text=True)

    def sent(self):
        """Bytes of model files sent since the last call, by file name."""
        counted = dict(self.server.sent)
        self.server.sent.clear()
        counted.pop("manifest.json", None)
        return counted


@pytest.fixture
def site(tmp_path):
    site = ModelServer(tmp_path)
    with site.server.running():
        yield site


def is_same(acquired, site, location):
    return all(
        (acquired.folder / path).read_bytes() == site.source(location, path).read_bytes() for path in FILES
    )


def test_a_pulled_model_equals_the_pushed_one_and_is_not_pulled_again(site):
    location = site.add()
    first = site.cache().acquire(location)
    assert is_same(first, site, location)
    assert sum(site.sent().values()) == sum(FILES.values())
    site.server.server_close()
    assert site.cache().acquire(location).folder == first.folder, (
        "a version never changes, so S3 gets no request"
    )


def test_after_a_kill_only_the_missing_ranges_are_downloaded(site):
    others = set(threading.enumerate())  # threads of servers that tests share
    location = site.add()
    site.server.bytes_per_second = 2 * RANGE
    process = site.pull_process(location)
    journal = next_path(site.folder / "cache", "*/journal")
    wait_until(lambda: journal().read_text().count("range") >= 8)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)
    assert not list((site.folder / "cache").glob("*/model"))
    there = sum(
        min(RANGE, FILES[path] - int(begin))
        for verb, begin, path in (line.split(" ", 2) for line in journal().read_text().splitlines()[1:])
        if verb == "range"
    )
    wait_until(lambda: not any("process_request" in one.name for one in set(threading.enumerate()) - others))
    site.sent()
    site.server.bytes_per_second = QUICK
    acquired = site.cache().acquire(location)
    assert sum(site.sent().values()) == sum(FILES.values()) - there
    assert there >= 8 * RANGE // 2
    assert is_same(acquired, site, location)


def test_two_concurrent_processes_share_one_download(site):
    location = site.add()
    site.server.bytes_per_second = 10 * RANGE
    processes = [site.pull_process(location) for _ in range(2)]
    folders = {json.loads(process.communicate(timeout=60)[0])["folder"] for process in processes}
    assert len(folders) == 1
    assert sum(site.sent().values()) == sum(FILES.values())


def test_many_concurrent_threads_share_one_download(site):
    location, folders = site.add(), []
    threads = [
        threading.Thread(target=lambda: folders.append(site.cache().acquire(location)), daemon=True)
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (len(folders), len({acquired.folder for acquired in folders})) == (6, 1)
    assert sum(site.sent().values()) == sum(FILES.values())


def test_two_that_find_no_model_share_one_download_and_do_not_wait_for_each_others_use(site, monkeypatch):
    """Both release the shared lock before either fills the entry; the first then keeps the model in use."""
    location, acquired, both = site.add(), [], threading.Barrier(2)
    try_exclusive, has_met = CacheEntry.try_exclusive, threading.local()

    def meet_first(entry):
        if entry.location == location and not hasattr(has_met, "yes"):
            has_met.yes = True
            both.wait(60)
        return try_exclusive(entry)

    monkeypatch.setattr(CacheEntry, "try_exclusive", meet_first)
    work = threading.Thread(target=lambda: acquired.append(site.cache().acquire(location)), daemon=True)
    work.start()
    acquired.append(site.cache().acquire(location))
    work.join(60)
    assert len(acquired) == 2
    assert sum(site.sent().values()) == sum(FILES.values())


def test_a_corrupted_byte_is_found_and_only_its_file_is_downloaded_again(site):
    location, cache = site.add(), site.cache()
    acquired = cache.acquire(location)
    site.sent()
    flip_a_byte(acquired.folder / "vae/weights.safetensors")
    in_use = cache.verify(location)
    assert (in_use.damaged, in_use.is_withdrawn) == (("vae/weights.safetensors",), False)
    acquired.lock.close()
    assert cache.verify(location).is_withdrawn
    again = cache.acquire(location)
    assert site.sent() == {"weights.safetensors": FILES["vae/weights.safetensors"]}
    assert is_same(again, site, location)
    assert cache.verify(location).damaged == ()


def test_verifying_a_model_that_was_not_pulled_creates_nothing(site):
    """A mistyped data folder stays a folder that does not exist."""
    with pytest.raises(ModelError, match="is not in the cache"):
        site.cache().verify(site.add())
    assert not (site.folder / "cache").exists()


def test_a_damaged_model_may_be_evicted_while_it_is_verified(site, monkeypatch):
    cache, location = site.cache(), site.add()
    acquired = cache.acquire(location)
    acquired.lock.close()
    (acquired.folder / WEIGHTS).write_bytes(b"damaged")
    real = CacheEntry.try_exclusive

    def evict_first(entry):
        monkeypatch.setattr(CacheEntry, "try_exclusive", real)
        assert cache.evict(location)
        return real(entry)

    monkeypatch.setattr(CacheEntry, "try_exclusive", evict_first)
    assert cache.verify(location).damaged == (WEIGHTS,)
    assert cache.list_entries() == []


def test_bytes_that_do_not_match_the_manifest_are_never_published(site):
    location, cache = site.add(), site.cache()
    intact = site.source(location).read_bytes()
    flip_a_byte(site.source(location))
    with pytest.raises(ModelError, match="transformer/weights.safetensors .* do not match"):
        cache.acquire(location)
    assert not list((site.folder / "cache").glob("*/model"))
    site.sent()
    site.source(location).write_bytes(intact)
    assert is_same(cache.acquire(location), site, location)
    assert site.sent() == {"weights.safetensors": FILES[WEIGHTS]}, (
        "the other files were intact the first time"
    )


def test_a_missing_file_stops_the_pull_and_the_rest_is_kept(site):
    location, cache = site.add(), site.cache()
    site.source(location).rename(site.folder / "aside")
    with pytest.raises(ModelError, match="NoSuchKey"):
        cache.acquire(location)
    (site.folder / "aside").rename(site.source(location))
    assert is_same(cache.acquire(location), site, location)


def test_the_error_of_a_pull_is_the_failure_and_not_that_another_download_stopped(tmp_path, monkeypatch):
    """The download that fails is the last to end: it is held until the pull has seen the other one stop."""
    is_reading, has_failed, has_seen = (threading.Event() for _ in range(3))

    class Remote:
        settings = ModelSettings(connections=2)

        def read_range(self, file, _begin, _end):
            if file.path == "missing":
                assert is_reading.wait(60)
                raise ModelError("NoSuchKey")
            is_reading.set()
            assert has_failed.wait(60)
            yield b"x"

    class Stop(threading.Event):
        def set(self):
            super().set()
            if not has_failed.is_set():
                has_failed.set()
                assert has_seen.wait(60)

    class Pool(ThreadPoolExecutor):
        def shutdown(self, *arguments, **options):
            has_seen.set()
            super().shutdown(*arguments, **options)

    monkeypatch.setattr(fetch, "ThreadPoolExecutor", Pool)
    files = tuple(FileRecord(path, 1, "0" * 64) for path in ("missing", "whole"))
    download = fetch.Fetch(Remote(), Manifest(files), tmp_path / "partial", tmp_path / "journal")
    download._stop = Stop()
    with pytest.raises(ModelError, match="NoSuchKey"):
        download.run()


def test_a_version_without_a_manifest_does_not_exist(site):
    location = site.add()
    site.source(location, "manifest.json").unlink()
    with pytest.raises(ModelError, match="filmgate models push"):
        site.cache().acquire(location)


def test_the_least_recently_used_model_is_evicted_but_never_one_in_use(site):
    total = sum(FILES.values())
    cache = site.cache(cache_bytes=2 * total + 100)
    old, busy, new = (site.add(name) for name in ("old", "busy", "new"))
    cache.acquire(old).lock.close()
    held = cache.acquire(busy)
    age(cache, busy, seconds=1000)
    cache.acquire(new).lock.close()
    assert [entry.location.url for entry in cache.list_entries()] == [busy.url, new.url]
    assert [entry.is_in_use for entry in cache.list_entries()] == [True, False]
    assert cache.evict(busy) is False
    assert cache.shrink(0) == [new.url]
    assert held.folder.is_dir()
    held.lock.close()
    assert cache.evict(busy) is True
    assert cache.list_entries() == []


def test_if_all_models_are_in_use_the_pull_fails_and_evicts_nothing(site):
    cache = site.cache(cache_bytes=sum(FILES.values()) + 100)
    held = cache.acquire(site.add("first"))
    with pytest.raises(StoreFull, match=r"models\.cache_bytes is .* in use"):
        cache.acquire(site.add("second"))
    assert held.folder.is_dir()


def test_a_full_disk_stops_the_pull_at_once(site, monkeypatch):
    attempts = []

    def fail(*_write):
        attempts.append(1)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("filmgate.models.weights.fetch.os.pwrite", fail)
    with pytest.raises(StoreFull, match="No space left on device"):
        site.cache(connections=1).acquire(site.add())
    assert len(attempts) == 1


@pytest.mark.parametrize(
    "call", ["fetch.os.truncate", "fetch.os.fsync", "journal.Journal.add_range", "entry.CacheEntry.reserve"]
)
def test_a_full_disk_is_the_same_error_wherever_it_is_noticed(site, monkeypatch, call):
    def fail(*_arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    location = site.add()
    with monkeypatch.context() as patch:
        patch.setattr(f"filmgate.models.weights.{call}", fail)
        with pytest.raises(StoreFull, match=r"No space left on device; .* set models\.cache"):
            site.cache(connections=1).acquire(location)
    assert site.cache().acquire(location).folder.is_dir(), "the next try finishes the pull"


def test_the_error_for_an_unwritable_cache_names_the_setting(site):
    (site.folder / "cache").write_text("a file")
    with pytest.raises(StoreUnavailable, match=r"set models\.cache"):
        site.cache().acquire(site.add())


def test_a_pull_reports_its_progress(site):
    reports = []
    site.cache().acquire(site.add(), lambda done, total: reports.append((done, total)))
    assert reports[-1] == (sum(FILES.values()),) * 2
    assert reports == sorted(reports)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"url": "s3://"}'])
def test_the_error_for_a_damaged_entry_names_the_folder_to_delete(site, text):
    cache, location = site.cache(), site.add()
    cache.acquire(location).lock.close()
    folder = CacheEntry(site.folder / "cache", location).folder
    (folder / "entry.json").write_text(text)
    model = CacheEntry(site.folder / "cache", location).model
    for read in (cache.list_entries, lambda: cache.verify(location), lambda: weights_digest(model)):
        with pytest.raises(ModelError, match=f"is damaged; delete {folder}"):
            read()


def test_an_unfinished_pull_is_evicted_like_any_other(site):
    cache = site.cache(cache_bytes=sum(FILES.values()) + 100)
    broken = site.add("broken")
    site.source(broken).unlink()
    with pytest.raises(ModelError):
        cache.acquire(broken)
    assert [entry.is_published for entry in cache.list_entries()] == [False]
    acquired = cache.acquire(site.add("intact"))
    assert [entry.model for entry in cache.list_entries()] == [acquired.folder]


def test_a_model_is_kept_until_its_user_releases_it(site):
    location, cache = site.add(), site.cache()
    with ExitStack() as held:
        folder = ensure_local(location.url, cache, held)
        assert folder == str(cache.list_entries()[0].model)
        assert cache.evict(location) is False
    assert cache.evict(location) is True
    assert ensure_local("flipbook", cache, ExitStack()) == "flipbook"


def flip_a_byte(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def age(cache, location, seconds):
    entry = next(entry for entry in cache.list_entries() if entry.location == location)
    then = time.time() - seconds
    os.utime(entry.folder / "used", (then, then))


def next_path(folder, pattern):
    """A function that waits for the one path that matches and returns it."""

    def find():
        wait_until(lambda: list(folder.glob(pattern)))
        return next(folder.glob(pattern))

    return find
