"""The model cache against a server that counts bytes: killed, corrupted, shared, evicted."""

import errno
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack

import pytest

from filmgate.errors import ModelError, StoreFull, StoreUnavailable
from filmgate.models.weights import localise
from filmgate.models.weights.cache import ModelCache
from filmgate.models.weights.entry import Entry
from filmgate.models.weights.location import parse_location
from filmgate.models.weights.manifest import build_manifest
from filmgate.models.weights.remote import open_remote
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


class Shop:
    """A bucket of models on disk, served with a limit, and caches that pull from it."""

    def __init__(self, folder):
        self.folder = folder
        self.server = RatedBucket(folder / "bucket", QUICK)

    def add(self, name="wan", version=1, files=FILES):
        place = self.folder / "bucket/film/models" / name / f"v{version}"
        for path, size in files.items():
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            (place / path).write_bytes(secrets.token_bytes(size))
        (place / "manifest.json").write_text(build_manifest(place).to_json())
        return parse_location(f"s3://film/models/{name}/v{version}/")

    def source(self, location, path=WEIGHTS):
        return self.folder / "bucket" / location.bucket / location.prefix / path

    def settings(self, **given):
        known = {"endpoint": self.server.url, "region": "eu-west-1", "cache": str(self.folder / "cache")}
        return ModelSettings(**known | {"range_bytes": RANGE, "connections": 4} | given)

    def cache(self, **given):
        settings = self.settings(**given)
        return ModelCache(
            self.folder / "cache", settings, lambda place: open_remote(place, settings, is_anonymous=True)
        )

    def pull_process(self, location):
        names = self.settings().model_dump()
        environ = {f"FILMGATE_MODELS__{name.upper()}": str(value) for name, value in names.items()}
        keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
        command = [sys.executable, "-m", "filmgate", "models", "pull", location.url, "--json"]
        return subprocess.Popen(command, env=os.environ | keys | environ, stdout=subprocess.PIPE, text=True)

    def sent(self):
        """Bytes of model files since the last time this was asked, by file name."""
        counted = dict(self.server.sent)
        self.server.sent.clear()
        counted.pop("manifest.json", None)
        return counted


@pytest.fixture
def shop(tmp_path):
    shop = Shop(tmp_path)
    with shop.server.running():
        yield shop


def is_same(taken, shop, location):
    return all(
        (taken.folder / path).read_bytes() == shop.source(location, path).read_bytes() for path in FILES
    )


def test_a_pulled_model_is_the_pushed_one_and_is_not_pulled_again(shop):
    location = shop.add()
    first = shop.cache().take(location)
    assert is_same(first, shop, location)
    assert sum(shop.sent().values()) == sum(FILES.values())
    shop.server.server_close()
    assert shop.cache().take(location).folder == first.folder, "a version never changes: S3 is not asked"


def test_after_a_kill_only_the_missing_ranges_are_fetched(shop):
    others = set(threading.enumerate())  # of servers that tests share
    location = shop.add()
    shop.server.bytes_per_second = 2 * RANGE
    process = shop.pull_process(location)
    journal = next_path(shop.folder / "cache", "*/journal")
    wait_until(lambda: journal().read_text().count("range") >= 8)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)
    assert not list((shop.folder / "cache").glob("*/model"))
    there = sum(
        min(RANGE, FILES[path] - int(begin))
        for verb, begin, path in (line.split(" ", 2) for line in journal().read_text().splitlines()[1:])
        if verb == "range"
    )
    wait_until(lambda: not any("process_request" in one.name for one in set(threading.enumerate()) - others))
    shop.sent()
    shop.server.bytes_per_second = QUICK
    taken = shop.cache().take(location)
    assert sum(shop.sent().values()) == sum(FILES.values()) - there
    assert there >= 8 * RANGE // 2
    assert is_same(taken, shop, location)


def test_two_processes_at_once_make_one_download(shop):
    location = shop.add()
    shop.server.bytes_per_second = 10 * RANGE
    processes = [shop.pull_process(location) for _ in range(2)]
    folders = {json.loads(process.communicate(timeout=60)[0])["folder"] for process in processes}
    assert len(folders) == 1
    assert sum(shop.sent().values()) == sum(FILES.values())


def test_many_threads_at_once_make_one_download(shop):
    location, folders = shop.add(), []
    threads = [
        threading.Thread(target=lambda: folders.append(shop.cache().take(location)), daemon=True)
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (len(folders), len({taken.folder for taken in folders})) == (6, 1)
    assert sum(shop.sent().values()) == sum(FILES.values())


def test_two_that_both_found_nothing_make_one_download_and_neither_waits_for_the_others_use(
    shop, monkeypatch
):
    """Both let go of the shared lock before either fills; the first keeps using the model from then on."""
    location, taken, both = shop.add(), [], threading.Barrier(2)
    try_exclusive, has_met = Entry.try_exclusive, threading.local()

    def meet_first(entry):
        if entry.location == location and not hasattr(has_met, "yes"):
            has_met.yes = True
            both.wait(60)
        return try_exclusive(entry)

    monkeypatch.setattr(Entry, "try_exclusive", meet_first)
    work = threading.Thread(target=lambda: taken.append(shop.cache().take(location)), daemon=True)
    work.start()
    taken.append(shop.cache().take(location))
    work.join(60)
    assert len(taken) == 2
    assert sum(shop.sent().values()) == sum(FILES.values())


def test_a_corrupted_byte_is_found_and_only_its_file_is_fetched_again(shop):
    location, cache = shop.add(), shop.cache()
    taken = cache.take(location)
    shop.sent()
    flip_a_byte(taken.folder / "vae/weights.safetensors")
    in_use = cache.verify(location)
    assert (in_use.damaged, in_use.is_withdrawn) == (("vae/weights.safetensors",), False)
    taken.lock.close()
    assert cache.verify(location).is_withdrawn
    again = cache.take(location)
    assert shop.sent() == {"weights.safetensors": FILES["vae/weights.safetensors"]}
    assert is_same(again, shop, location)
    assert cache.verify(location).damaged == ()


def test_bytes_that_do_not_match_the_manifest_are_never_published(shop):
    location, cache = shop.add(), shop.cache()
    sound = shop.source(location).read_bytes()
    flip_a_byte(shop.source(location))
    with pytest.raises(ModelError, match="transformer/weights.safetensors .* do not match"):
        cache.take(location)
    assert not list((shop.folder / "cache").glob("*/model"))
    shop.sent()
    shop.source(location).write_bytes(sound)
    assert is_same(cache.take(location), shop, location)
    assert shop.sent() == {"weights.safetensors": FILES[WEIGHTS]}, "the other files were right the first time"


def test_a_file_that_is_gone_stops_the_pull_and_the_rest_is_kept(shop):
    location, cache = shop.add(), shop.cache()
    shop.source(location).rename(shop.folder / "aside")
    with pytest.raises(ModelError, match="NoSuchKey"):
        cache.take(location)
    (shop.folder / "aside").rename(shop.source(location))
    assert is_same(cache.take(location), shop, location)


def test_a_version_without_a_manifest_does_not_exist(shop):
    location = shop.add()
    shop.source(location, "manifest.json").unlink()
    with pytest.raises(ModelError, match="filmgate models push"):
        shop.cache().take(location)


def test_the_least_recently_used_leaves_and_never_what_is_in_use(shop):
    total = sum(FILES.values())
    cache = shop.cache(cache_bytes=2 * total + 100)
    old, busy, new = (shop.add(name) for name in ("old", "busy", "new"))
    cache.take(old).lock.close()
    held = cache.take(busy)
    age(cache, busy, seconds=1000)
    cache.take(new).lock.close()
    assert [holding.url for holding in cache.holdings()] == [busy.url, new.url]
    assert [holding.is_in_use for holding in cache.holdings()] == [True, False]
    assert cache.evict(busy) is False
    assert cache.shrink(0) == [new.url]
    assert held.folder.is_dir()
    held.lock.close()
    assert cache.evict(busy) is True
    assert cache.holdings() == []


def test_when_everything_is_in_use_the_pull_says_so_and_evicts_nothing(shop):
    cache = shop.cache(cache_bytes=sum(FILES.values()) + 100)
    held = cache.take(shop.add("first"))
    with pytest.raises(StoreFull, match=r"models\.cache_bytes is .* in use"):
        cache.take(shop.add("second"))
    assert held.folder.is_dir()


def test_a_full_disk_stops_the_pull_at_once_and_says_so(shop, monkeypatch):
    tries = []

    def refuse(*_write):
        tries.append(1)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("filmgate.models.weights.fetch.os.pwrite", refuse)
    with pytest.raises(StoreFull, match="No space left on device"):
        shop.cache(connections=1).take(shop.add())
    assert len(tries) == 1


def test_a_cache_that_cannot_be_written_names_the_setting(shop):
    (shop.folder / "cache").write_text("a file")
    with pytest.raises(StoreUnavailable, match=r"set models\.cache"):
        shop.cache().take(shop.add())


def test_what_a_pull_has_done_is_told(shop):
    told = []
    shop.cache().take(shop.add(), lambda done, total: told.append((done, total)))
    assert told[-1] == (sum(FILES.values()),) * 2
    assert told == sorted(told)


def test_a_pull_that_was_given_up_is_evicted_like_any_other(shop):
    cache = shop.cache(cache_bytes=sum(FILES.values()) + 100)
    broken = shop.add("broken")
    shop.source(broken).unlink()
    with pytest.raises(ModelError):
        cache.take(broken)
    assert [holding.is_whole for holding in cache.holdings()] == [False]
    taken = cache.take(shop.add("sound"))
    assert [holding.folder for holding in cache.holdings()] == [taken.folder]


def test_a_model_is_held_for_as_long_as_its_user_says(shop):
    location, cache = shop.add(), shop.cache()
    with ExitStack() as held:
        folder = localise(location.url, cache, held)
        assert folder == str(cache.holdings()[0].folder)
        assert cache.evict(location) is False
    assert cache.evict(location) is True
    assert localise("flipbook", cache, ExitStack()) == "flipbook"


def flip_a_byte(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def age(cache, location, seconds):
    entry = next(holding for holding in cache.holdings() if holding.url == location.url)
    then = time.time() - seconds
    os.utime(entry.folder.parent / "used", (then, then))


def next_path(folder, pattern):
    """The one path of this pattern, once it is there."""

    def find():
        wait_until(lambda: list(folder.glob(pattern)))
        return next(folder.glob(pattern))

    return find
