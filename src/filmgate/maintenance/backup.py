"""Backup and restore of an installation on SQLite: the database, the keys apart, the objects by reference."""

import json
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import sqlalchemy as sa

from filmgate.database import DEFAULT_FILE, open_database
from filmgate.database.backup import copy_database, end_leases, place_database, reading_copy
from filmgate.database.engine import parse_url
from filmgate.database.schema import REVISION, jobs
from filmgate.database.site import site_of
from filmgate.errors import KeyRefused, ObjectCorrupt, ObjectNotFound, UsageError
from filmgate.jobs import JobId, TenantId
from filmgate.scheduling.rows import Row, to_clip
from filmgate.scheduling.site_doctor import find_unreadable
from filmgate.settings import Settings
from filmgate.store import open_store
from filmgate.store.base import ObjectName, ObjectStore
from filmgate.store.keys import open_keyring, open_keys
from filmgate.store.keys.base import Keyring
from filmgate.store.keys.data_keys import DataKeys, Sealer
from filmgate.store.keys.files import FileKeyring

MANIFEST_FILE = "manifest.json"
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a backup contains. `objects` names every clip and picture of the completed jobs."""

    format: int
    created_at: float
    schema: str
    store: str
    keyring: str
    jobs: int
    objects: list[str]


@dataclass(frozen=True, slots=True)
class Restored:
    """The result of a restore: what is there, and what is missing or damaged."""

    jobs: int
    ended_leases: int
    missing_objects: list[str]
    unreadable_tenants: list[str]


def back_up(settings: Settings, target: Path, key_target: Path | None) -> Manifest:
    """Write a backup to a new folder, and the tenants' keys to another one. The service may be running."""
    keyring = open_keyring(settings.store, settings.data)
    store = open_store(settings.store, settings.data, DataKeys(keyring))
    with closing(open_database(settings.queue, settings.data)) as database:
        if key_target is not None:
            site_of(database, store, keyring).require()  # the keys of another installation open nothing here
            _check_apart(target, key_target)
            _make_folder(key_target, "--keys")
        _make_folder(target, "TARGET")
        # Before and after the database, so that no key that it needs is missing: meanwhile a rewrap may
        # delete a key, and a new tenant gets one.
        _copy_keys(keyring, key_target)
        copy_database(database, target / DEFAULT_FILE)
        _copy_keys(keyring, key_target)
    with reading_copy(target / DEFAULT_FILE) as connection:
        count, names = _describe(connection)
    objects = [str(name) for name in names]
    manifest = Manifest(_FORMAT, time.time(), REVISION, store.identity, keyring.identity, count, objects)
    (target / MANIFEST_FILE).write_text(json.dumps(asdict(manifest), indent=1) + "\n")
    return manifest


def restore(settings: Settings, source: Path, key_source: Path | None) -> Restored:
    """Restore a backup into an empty data folder, then check every object and one prompt per tenant."""
    _read_manifest(source)
    if settings.queue.url and not settings.queue.url.startswith("sqlite:"):
        raise UsageError("restore PostgreSQL with pg_restore; see docs/operate/backup.md", option="queue.url")
    keyring = open_keyring(settings.store, settings.data)
    # Before the database: the keys can be copied again after an error, the database cannot.
    if key_source is not None and isinstance(keyring, FileKeyring):
        keyring.copy_from(key_source)
    given = parse_url(settings.queue.url).database if settings.queue.url else None
    place_database(source / DEFAULT_FILE, Path(given or settings.data / DEFAULT_FILE))
    with closing(open_database(settings.queue, settings.data)) as database:
        ended = end_leases(database)
        keys = open_keys(settings.store, settings.data)
        store = open_store(settings.store, settings.data, keys)
        site_of(database, store, keys).adopt()
        with database.read() as connection:
            count, names = _describe(connection)
        missing = [str(name) for name in names if not _is_usable(store, name)]
        return Restored(count, ended, missing, list(find_unreadable(database, Sealer(keys))))


def _is_usable(store: ObjectStore, name: ObjectName) -> bool:
    """Whether the end of the object can be read: a copy may be cut off, or need a key that is not here."""
    try:
        for _ in store.read(name, max(store.stat(name).size_bytes - 1, 0)):
            pass
    except (ObjectNotFound, ObjectCorrupt, KeyRefused):
        return False
    return True


def _describe(connection: sa.Connection) -> tuple[int, list[ObjectName]]:
    """The number of jobs, and the names of the objects that the completed ones refer to."""
    count = connection.execute(sa.select(sa.func.count()).select_from(jobs)).scalar_one()
    columns = (jobs.c.tenant_id, jobs.c.id, jobs.c.clip)
    rows = connection.execute(sa.select(*columns).where(jobs.c.clip.is_not(None))).mappings().all()
    return count, [name for row in rows for name in _objects_of(row)]


def _objects_of(row: Row) -> Iterator[ObjectName]:
    clip = to_clip(row["clip"])
    for part in (clip.part, clip.thumbnail, clip.spritesheet) if clip is not None else ():
        if part is not None:
            yield ObjectName(TenantId(row["tenant_id"]), JobId(row["id"]), part)


def _read_manifest(source: Path) -> Manifest:
    path = source / MANIFEST_FILE
    try:
        fields = json.loads(path.read_text())
        if fields["format"] > _FORMAT:
            raise UsageError(
                "a newer version of filmgate wrote the backup; upgrade filmgate", option="SOURCE"
            )
        return Manifest(**fields)
    except FileNotFoundError as exc:
        raise UsageError(f"{source} is not a backup: {MANIFEST_FILE} is missing", option="SOURCE") from exc
    except (OSError, ValueError, TypeError, KeyError) as exc:
        raise UsageError(f"{path} cannot be read or is damaged; use another backup", option="SOURCE") from exc


def _copy_keys(keyring: Keyring, target: Path | None) -> None:
    if target is not None and isinstance(keyring, FileKeyring):
        keyring.copy_to(target)


def _make_folder(folder: Path, option: str) -> None:
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty; choose a new folder", option=option)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def _check_apart(target: Path, key_target: Path) -> None:
    """Keys next to the data that they encrypt protect nothing."""
    data, keys = target.resolve(), key_target.resolve()
    if keys.is_relative_to(data) or data.is_relative_to(keys):
        raise UsageError("choose a folder outside the backup, on other storage", option="--keys")
