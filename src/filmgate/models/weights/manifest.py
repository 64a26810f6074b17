"""What a version of a model consists of. Written last by a push: a version without one does not exist."""

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath

from filmgate.errors import ModelError, UsageError

MANIFEST_FILE = "manifest.json"
INDEX_FILE = "model_index.json"
_FORMAT = 1
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file: its path inside the folder, with slashes, its size and its digest."""

    path: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """All files of a version, by path."""

    files: tuple[FileRecord, ...]

    @property
    def total_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    def to_json(self) -> str:
        files = [asdict(file) for file in self.files]
        return json.dumps({"format": _FORMAT, "total_bytes": self.total_bytes, "files": files}, indent=1)

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.to_json().encode()).hexdigest()


def parse_manifest(text: str | bytes, source: str) -> Manifest:
    """Raises ModelError for a document that is no manifest, or one whose paths lead out of its folder."""
    try:
        said = json.loads(text)
        if said["format"] != _FORMAT:
            raise ModelError(
                f"{source} has format {said['format']}; this version of filmgate reads {_FORMAT}"
            )
        files = tuple(
            FileRecord(str(f["path"]), int(f["size_bytes"]), str(f["sha256"])) for f in said["files"]
        )
    except (ValueError, KeyError, TypeError) as exc:
        raise ModelError(f"{source} is not a model manifest") from exc
    for file in files:
        if not _is_inside(file.path) or file.size_bytes < 0 or not _SHA256.fullmatch(file.sha256):
            raise ModelError(f"{source} has an entry that is not usable: {file.path!r}")
    if len({file.path for file in files}) != len(files) or not files:
        raise ModelError(f"{source} lists no files, or one of them twice")
    return Manifest(files)


def build_manifest(folder: Path) -> Manifest:
    """The manifest of a diffusers folder; hidden files (a hub's own bookkeeping) are not part of a model."""
    if not (folder / INDEX_FILE).is_file():
        raise UsageError(f"{folder} holds no {INDEX_FILE}, so it is no diffusers pipeline", option="FOLDER")
    records = []
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        is_hidden = any(part.startswith(".") for part in inside.parts)
        if path.is_file() and not is_hidden and inside.as_posix() != MANIFEST_FILE:
            records.append(FileRecord(inside.as_posix(), path.stat().st_size, hash_file(path)))
    return Manifest(tuple(records))


def hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_inside(path: str) -> bool:
    parts = PurePosixPath(path)
    return bool(path) and "\\" not in path and not parts.is_absolute() and ".." not in parts.parts
