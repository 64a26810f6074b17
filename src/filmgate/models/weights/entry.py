"""One model version in the cache, as files.

<cache>/wan-v3-1a2b3c4d/entry.json   URL and manifest; reserves the space, downloaded or not
                        partial/     what is downloaded so far; `journal` lists the ranges
                        model/       the complete version with every digest checked; appears by rename
                        used         its modification time is the last use
<cache>/.trash-wan-v3-1a2b3c4d       a deleted entry that is being removed from the disk
<cache>/.locks/wan-v3-1a2b3c4d       shared: in use; exclusive: being filled or deleted
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from filmgate.errors import ModelError, UsageError
from filmgate.models.weights.location import ModelLocation, parse_location
from filmgate.models.weights.locks import NodeLock, try_lock
from filmgate.models.weights.manifest import Manifest, build_manifest, parse_manifest

T = TypeVar("T")
LOCKS = ".locks"
_TRASH = ".trash-"
_ENTRY_FILE = "entry.json"


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """The files of one location in the cache, whether or not they exist yet."""

    cache: Path
    location: ModelLocation

    @property
    def name(self) -> str:
        digest = hashlib.sha256(self.location.url.encode()).hexdigest()[:8]
        return f"{self.location.name}-v{self.location.version}-{digest}"

    @property
    def folder(self) -> Path:
        return self.cache / self.name

    @property
    def model(self) -> Path:
        return self.folder / "model"

    @property
    def partial(self) -> Path:
        return self.folder / "partial"

    @property
    def journal(self) -> Path:
        return self.folder / "journal"

    @property
    def lock_path(self) -> Path:
        return self.cache / LOCKS / self.name

    @property
    def trash(self) -> Path:
        return self.cache / f"{_TRASH}{self.name}"

    @property
    def is_published(self) -> bool:
        return self.model.is_dir()

    @property
    def used_at(self) -> float:
        """Unix seconds of the last use, or of the reservation if the model was never used."""
        for path in (self.folder / "used", self.folder / _ENTRY_FILE):
            if path.exists():
                return path.stat().st_mtime
        return 0.0

    @property
    def size_bytes(self) -> int:
        """The bytes of the complete model, downloaded or not; 0 if there is no entry."""
        manifest = self.read_manifest()
        return manifest.total_bytes if manifest is not None else 0

    def mark_used(self) -> None:
        (self.folder / "used").touch()

    def read_manifest(self) -> Manifest | None:
        """The manifest of the reserved or published version; None if there is no entry."""
        return _read_entry(self.folder / _ENTRY_FILE, "manifest", parse_manifest)

    def reserve(self, manifest: Manifest) -> None:
        """Reserves the space. Deletes what was downloaded for another manifest."""
        if self.folder.exists() and self.read_manifest() != manifest:
            shutil.rmtree(self.folder)
        self.partial.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"url": self.location.url, "manifest": manifest.as_dict()})
        staged = self.folder / f"{_ENTRY_FILE}.new"
        staged.write_text(text)
        staged.rename(self.folder / _ENTRY_FILE)

    def publish(self) -> None:
        self.partial.rename(self.model)
        self.journal.unlink()

    def delete(self) -> None:
        """Removes the entry for other processes immediately, then from the disk. Needs the exclusive lock."""
        self.empty_trash()
        self.folder.rename(self.trash)
        self.empty_trash()

    def empty_trash(self) -> None:
        """Removes what a killed process did not delete from the disk. Needs the exclusive lock."""
        _remove_trash(self.trash)

    def try_exclusive(self) -> NodeLock | None:
        return try_lock(self.lock_path)

    @property
    def is_in_use(self) -> bool:
        if (lock := self.try_exclusive()) is None:
            return True
        lock.close()
        return False


def weights_digest(folder: Path) -> str:
    """The version of a model's weights: SHA-256 over the paths, sizes and digests of all files.

    A pulled model has it in its cache entry; the files of any other folder are read once.
    """
    entry = folder.parent / _ENTRY_FILE
    pulled = _read_entry(entry, "manifest", parse_manifest) if folder.name == "model" else None
    return (pulled or build_manifest(folder)).digest


def find_entries(cache: Path) -> Iterator[CacheEntry]:
    """All entries, least recently used first."""
    paths = [path for path in cache.glob(f"*/{_ENTRY_FILE}") if not path.parent.name.startswith(".")]
    locations = (_read_entry(path, "url", parse_location) for path in paths)
    found = [CacheEntry(cache, location) for location in locations if location is not None]
    yield from sorted(found, key=lambda entry: entry.used_at)


def empty_trash(cache: Path) -> None:
    """Removes what killed processes did not delete from the disk. A running deletion holds its lock."""
    for trash in cache.glob(f"{_TRASH}*"):
        if (lock := try_lock(cache / LOCKS / trash.name.removeprefix(_TRASH))) is not None:
            with lock:
                _remove_trash(trash)


def _remove_trash(trash: Path) -> None:
    if trash.exists():
        shutil.rmtree(trash)


def _read_entry(path: Path, field: str, parse: Callable[[Any, str], T]) -> T | None:
    """One field of an entry's file; None if there is none, or if it was deleted in the meantime."""
    try:
        return parse(json.loads(path.read_text())[field], str(path))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, UsageError) as exc:
        raise ModelError(f"{path} is damaged; delete {path.parent}") from exc
