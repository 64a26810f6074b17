"""The models on this node: one download for any number of processes, evicted by last use."""

import secrets
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from filmgate.errors import ModelError, StoreFull
from filmgate.models.weights.entry import LOCKS, CacheEntry, empty_trash, find_entries
from filmgate.models.weights.fetch import Fetch, ReportProgress
from filmgate.models.weights.journal import Journal
from filmgate.models.weights.location import ModelLocation
from filmgate.models.weights.locks import NodeLock, acquire_lock
from filmgate.models.weights.manifest import FileRecord, Manifest, hash_file
from filmgate.models.weights.remote import open_remote
from filmgate.settings import ModelSettings
from filmgate.telemetry.logs import Log

# One of several processes fills a missing entry. The others try again, and their shared lock waits for it.
_MAX_ATTEMPTS = 1000
_MAX_PAUSE_MILLISECONDS = 50

log = Log("weights")


@dataclass(frozen=True, slots=True)
class AcquiredModel:
    """A model in use. Its folder is not evicted before the lock is closed or the process ends."""

    folder: Path
    lock: NodeLock


@dataclass(frozen=True, slots=True)
class Verification:
    """The damaged files of a model. If `is_withdrawn`, the next pull downloads them again."""

    url: str
    damaged: tuple[str, ...]
    is_withdrawn: bool


class ModelCache:
    """Models in one folder on a local NVMe disk or in /dev/shm, shared by any number of processes."""

    def __init__(self, folder: Path, settings: ModelSettings) -> None:
        self._folder = folder
        self._settings = settings

    def acquire(self, location: ModelLocation, report: ReportProgress | None = None) -> AcquiredModel:
        """The model, pulled if it is not cached. A version never changes, so a cached one needs no request.

        Raises ModelError, StoreUnavailable or StoreFull. The next try resumes the download.
        """
        entry = CacheEntry(self._folder, location)
        for _ in range(_MAX_ATTEMPTS):
            shared = acquire_lock(entry.lock_path, is_shared=True, on_wait=lambda: _log_waiting(location))
            if entry.is_published:
                entry.mark_used()
                return AcquiredModel(entry.model, shared)
            shared.close()
            # Do not wait for the exclusive lock: the process that fills the entry may use it for days.
            if (exclusive := entry.try_exclusive()) is not None:
                with exclusive:
                    if not entry.is_published:
                        self._fill(entry, report)
            else:
                time.sleep(secrets.randbelow(_MAX_PAUSE_MILLISECONDS) / 1000)
        raise ModelError(f"{location.url} is evicted as soon as it is pulled; raise models.cache_bytes")

    def list_entries(self) -> list[CacheEntry]:
        """The models in the cache, least recently used first."""
        return list(find_entries(self._folder))

    def verify(self, location: ModelLocation) -> Verification:
        """Reads every byte. If the model is not in use, it is withdrawn and the next pull downloads its
        damaged files again, and only those.
        """
        entry = CacheEntry(self._folder, location)
        missing = ModelError(f"{location.url} is not in the cache; run `filmgate models pull`")
        if not entry.is_published:  # before the lock, whose file would create a folder for the cache
            raise missing
        with acquire_lock(entry.lock_path, is_shared=True):
            manifest = entry.read_manifest()
            if manifest is None or not entry.is_published:
                raise missing
            damaged = tuple(file.path for file in manifest.files if not _is_intact(entry.model, file))
        if not damaged or (lock := entry.try_exclusive()) is None:
            return Verification(location.url, damaged, is_withdrawn=False)
        with lock:
            if entry.is_published:  # another process may have evicted it in between
                self._withdraw(entry, manifest, damaged)
        return Verification(location.url, damaged, is_withdrawn=True)

    def evict(self, location: ModelLocation) -> bool:
        """Deletes a model. Returns False if it is in use or not in the cache."""
        return _evict(CacheEntry(self._folder, location))

    def shrink(self, to_bytes: int) -> list[str]:
        """Evicts by last use until at most this many bytes, or only models in use, remain."""
        if not self._folder.is_dir():
            return []
        with acquire_lock(self._folder / LOCKS / "room"):
            return self._evict_until(lambda: sum(each.size_bytes for each in self.list_entries()) <= to_bytes)

    def _fill(self, entry: CacheEntry, report: ReportProgress | None) -> None:
        remote = open_remote(entry.location, self._settings)
        manifest = remote.read_manifest()
        try:
            self._make_room(entry, manifest)
            log.info("pulling a model", model=entry.location.name, size_bytes=manifest.total_bytes)
            Fetch(remote, manifest, entry.partial, entry.journal).run(report)
            entry.publish()
            entry.mark_used()
        except ConnectionError:
            raise  # of `report`, which writes to a terminal or a pipe
        except OSError as exc:
            raise StoreFull(
                f"cannot write to the model cache: {exc.strerror}; free space in {self._folder}, or set "
                "models.cache to another folder"
            ) from exc

    def _make_room(self, entry: CacheEntry, manifest: Manifest) -> None:
        """Evicts unused models, then reserves the space: concurrent pulls cannot overbook the disk."""
        need, budget = manifest.total_bytes, self._settings.cache_bytes
        entry.empty_trash()
        with acquire_lock(self._folder / LOCKS / "room"):

            def is_enough() -> bool:
                others = (other for other in find_entries(self._folder) if other != entry)
                is_within = budget == 0 or sum(other.size_bytes for other in others) + need <= budget
                return is_within and need <= self._free_bytes(entry) + _allocated_bytes(entry.partial)

            self._evict_until(is_enough, keep=entry)
            if not is_enough():
                limit = f"models.cache_bytes is {budget}, " if budget else ""
                free = self._free_bytes(entry)
                raise StoreFull(
                    f"{entry.location.url} needs {need} bytes: {limit}{free} bytes of disk are free and not "
                    "reserved by other pulls, and all other models in the cache are in use"
                )
            entry.reserve(manifest)

    def _free_bytes(self, entry: CacheEntry) -> int:
        """The free disk space without what the pulls of other entries have reserved and not written yet."""
        # The reservations first: what a pull writes in between then counts twice instead of never.
        others = [other for other in find_entries(self._folder) if other != entry]
        reserved = sum(_missing_bytes(other) for other in others)
        return max(0, shutil.disk_usage(self._folder).free - reserved)

    def _evict_until(self, is_enough: Callable[[], bool], keep: CacheEntry | None = None) -> list[str]:
        empty_trash(self._folder)
        evicted = []
        for entry in find_entries(self._folder):
            if is_enough():
                break
            if entry != keep and _evict(entry):
                evicted.append(entry.location.url)
        return evicted

    def _withdraw(self, entry: CacheEntry, manifest: Manifest, damaged: tuple[str, ...]) -> None:
        journal = Journal(entry.journal, f"{manifest.digest} {self._settings.range_bytes}")
        for file in manifest.files:
            if file.path not in damaged:
                journal.add_verified(file.path)
            else:
                journal.drop(file.path)
        entry.model.rename(entry.partial)


def _evict(entry: CacheEntry) -> bool:
    if not entry.folder.exists() or (lock := entry.try_exclusive()) is None:
        return False
    with lock:
        entry.delete()
    log.info("evicted a model", model=entry.location.name)
    return True


def _missing_bytes(entry: CacheEntry) -> int:
    """What the pull of an entry still has to write. Another process may publish or delete it meanwhile."""
    try:
        written = _allocated_bytes(entry.partial)
    except FileNotFoundError:
        return 0
    return 0 if entry.is_published else max(0, entry.size_bytes - written)


def _allocated_bytes(folder: Path) -> int:
    """Bytes on disk, not file lengths: ranges that are not downloaded yet are holes."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def _is_intact(folder: Path, file: FileRecord) -> bool:
    path = folder / file.path
    return path.is_file() and path.stat().st_size == file.size_bytes and hash_file(path) == file.sha256


def _log_waiting(location: ModelLocation) -> None:
    log.info("waiting for another process that pulls this model", model=location.name)
