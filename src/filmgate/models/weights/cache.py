"""The models a node keeps: one download however many workers start, and room made by age."""

import secrets
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from filmgate.errors import ModelError, StoreFull
from filmgate.models.weights.entry import LOCKS, Entry, find_entries
from filmgate.models.weights.fetch import Fetch, Report
from filmgate.models.weights.journal import Journal
from filmgate.models.weights.location import ModelLocation
from filmgate.models.weights.locks import NodeLock, take_lock
from filmgate.models.weights.manifest import FileRecord, Manifest, hash_file
from filmgate.models.weights.remote import Remote
from filmgate.settings import ModelSettings
from filmgate.telemetry.logs import Log

# Of several who find nothing one fills, and the others look again: their shared lock then waits for it.
_LOOKS_A_TAKE = 1000
_NAP_MILLISECONDS = 50

log = Log("weights")


@dataclass(frozen=True, slots=True)
class Taken:
    """A model in use: its folder stays until the lock is closed, or the process ends."""

    folder: Path
    lock: NodeLock


@dataclass(frozen=True, slots=True)
class Holding:
    """One line of `filmgate models list`."""

    url: str
    folder: Path
    size_bytes: int
    used_at: float
    is_whole: bool
    is_in_use: bool


@dataclass(frozen=True, slots=True)
class Inspection:
    """What a look at every byte found. `is_withdrawn`: the next pull fetches the damaged files again."""

    url: str
    damaged: tuple[str, ...]
    is_withdrawn: bool


class ModelCache:
    """Models in one folder: a local NVMe, or /dev/shm. Any number of processes may use it at once."""

    def __init__(
        self, folder: Path, settings: ModelSettings, open_remote: Callable[[ModelLocation], Remote]
    ) -> None:
        self._folder = folder
        self._settings = settings
        self._open_remote = open_remote

    def take(self, location: ModelLocation, report: Report | None = None) -> Taken:
        """The model, pulled if it is not here. A version never changes: one that is here asks S3 nothing.

        Raises ModelError, StoreUnavailable or StoreFull; what has arrived by then is kept for the next try.
        """
        entry = Entry(self._folder, location)
        for _ in range(_LOOKS_A_TAKE):
            shared = take_lock(entry.lock_path, is_shared=True, on_wait=lambda: _say_waiting(location))
            if entry.is_published:
                entry.note_use()
                return Taken(entry.model, shared)
            shared.close()
            # Never wait for the exclusive lock: whoever filled the entry may go on to use it for days.
            if (exclusive := entry.try_exclusive()) is not None:
                with exclusive:
                    if not entry.is_published:
                        self._fill(entry, report)
            else:
                time.sleep(secrets.randbelow(_NAP_MILLISECONDS) / 1000)
        raise ModelError(f"{location.url} is evicted as soon as it is pulled; raise models.cache_bytes")

    def holdings(self) -> list[Holding]:
        """What is here, the least recently used first."""
        return [
            Holding(
                url=entry.location.url,
                folder=entry.model,
                size_bytes=_size(entry),
                used_at=entry.used_at,
                is_whole=entry.is_published,
                is_in_use=entry.is_in_use,
            )
            for entry in find_entries(self._folder)
        ]

    def verify(self, location: ModelLocation) -> Inspection:
        """Read every byte. Damaged files are withdrawn, so that the next pull fetches them and no others;
        not while somebody uses the model.
        """
        entry = Entry(self._folder, location)
        with take_lock(entry.lock_path, is_shared=True):
            manifest = entry.read_manifest()
            if manifest is None or not entry.is_published:
                raise ModelError(f"{location.url} is not in the cache; run `filmgate models pull`")
            damaged = tuple(file.path for file in manifest.files if not _is_sound(entry.model, file))
        if not damaged or (lock := entry.try_exclusive()) is None:
            return Inspection(location.url, damaged, is_withdrawn=False)
        with lock:
            self._withdraw(entry, manifest, damaged)
        return Inspection(location.url, damaged, is_withdrawn=True)

    def evict(self, location: ModelLocation) -> bool:
        """Remove a model; False when it is in use or not here."""
        return _evict(Entry(self._folder, location))

    def shrink(self, to_bytes: int) -> list[str]:
        """Evict by age until no more than this is left, or everything left is in use."""
        with take_lock(self._folder / LOCKS / "room"):
            return self._evict_until(lambda: sum(map(_size, find_entries(self._folder))) <= to_bytes)

    def _fill(self, entry: Entry, report: Report | None) -> None:
        remote = self._open_remote(entry.location)
        manifest = remote.read_manifest()
        self._make_room(entry, manifest)
        log.info("pulling a model", model=entry.location.name, size_bytes=manifest.total_bytes)
        Fetch(remote, manifest, entry.partial, entry.journal).run(report)
        entry.publish()
        entry.note_use()

    def _make_room(self, entry: Entry, manifest: Manifest) -> None:
        """Evict what is oldest and unused, then reserve: pulls that start together never overbook."""
        need, budget = manifest.total_bytes, self._settings.cache_bytes
        with take_lock(self._folder / LOCKS / "room"):

            def is_enough() -> bool:
                others = (other for other in find_entries(self._folder) if other != entry)
                is_within = budget == 0 or sum(map(_size, others)) + need <= budget
                free = shutil.disk_usage(self._folder).free + _bytes_there(entry.partial)
                return is_within and need <= free

            self._evict_until(is_enough, keep=entry)
            if not is_enough():
                limit = f"models.cache_bytes is {budget}, " if budget else ""
                free = shutil.disk_usage(self._folder).free
                raise StoreFull(
                    f"{entry.location.url} needs {need} bytes: {limit}{free} bytes of disk are free, and "
                    "what else is in the cache is in use"
                )
            entry.reserve(manifest)

    def _evict_until(self, is_enough: Callable[[], bool], keep: Entry | None = None) -> list[str]:
        evicted = []
        for entry in find_entries(self._folder):
            if is_enough():
                break
            if entry != keep and _evict(entry):
                evicted.append(entry.location.url)
        return evicted

    def _withdraw(self, entry: Entry, manifest: Manifest, damaged: tuple[str, ...]) -> None:
        journal = Journal(entry.journal, f"{manifest.digest} {self._settings.range_bytes}")
        for file in manifest.files:
            if file.path not in damaged:
                journal.add_verified(file.path)
            else:
                journal.drop(file.path)
        entry.model.rename(entry.partial)


def _evict(entry: Entry) -> bool:
    if not entry.folder.exists() or (lock := entry.try_exclusive()) is None:
        return False
    with lock:
        entry.remove()
    log.info("evicted a model", model=entry.location.name)
    return True


def _size(entry: Entry) -> int:
    manifest = entry.read_manifest()
    return manifest.total_bytes if manifest is not None else 0


def _bytes_there(folder: Path) -> int:
    """Bytes on disk, not lengths: what has not arrived yet is a hole."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def _is_sound(folder: Path, file: FileRecord) -> bool:
    path = folder / file.path
    return path.is_file() and path.stat().st_size == file.size_bytes and hash_file(path) == file.sha256


def _say_waiting(location: ModelLocation) -> None:
    log.info("another process pulls this model; waiting for it", model=location.name)
