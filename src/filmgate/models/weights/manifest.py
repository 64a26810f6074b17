"""The files of a model version. A push uploads the manifest last: a version without one does not exist."""

import hashlib
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from filmgate.errors import ModelError, UsageError

MANIFEST_FILE = "manifest.json"
INDEX_FILE = "model_index.json"
_FORMAT = 1
_HASH_THREADS = 4
_SHA256 = re.compile(r"[0-9a-f]{64}")
_VARIANT = re.compile(r"\.(fp8|fp16|bf16|fp32)[.-]|non_ema")


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file: its relative path with slashes, its size and its digest."""

    path: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """All files of a version."""

    files: tuple[FileRecord, ...]

    @property
    def total_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    def as_dict(self) -> dict[str, Any]:
        files = [asdict(file) for file in self.files]
        return {"format": _FORMAT, "total_bytes": self.total_bytes, "files": files}

    def to_json(self) -> str:
        return json.dumps(self.as_dict(), indent=1)

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.to_json().encode()).hexdigest()


def parse_manifest(content: Any, source: str) -> Manifest:
    """The manifest in JSON text, or in parsed JSON.

    Raises ModelError for what is not a manifest or has a path outside the model's folder.
    """
    try:
        content = json.loads(content) if isinstance(content, str | bytes) else content
        if content["format"] != _FORMAT:
            raise ModelError(
                f"{source} has format {content['format']}; this version of filmgate reads {_FORMAT}"
            )
        files = tuple(
            FileRecord(str(f["path"]), int(f["size_bytes"]), str(f["sha256"])) for f in content["files"]
        )
    except (ValueError, KeyError, TypeError) as exc:
        raise ModelError(f"{source} is not a model manifest") from exc
    for file in files:
        if not _is_inside(file.path) or file.size_bytes < 0 or not _SHA256.fullmatch(file.sha256):
            raise ModelError(f"{source} has an invalid entry: {file.path!r}")
    if len({file.path for file in files}) != len(files) or not files:
        raise ModelError(f"{source} lists no files, or a file twice")
    return Manifest(files)


def build_manifest(folder: Path) -> Manifest:
    """The manifest of a diffusers folder or of an adapter, a folder with one safetensors file."""
    if not (folder / INDEX_FILE).is_file() and len(list(folder.glob("*.safetensors"))) != 1:
        raise UsageError(
            f"{folder} is neither a diffusers pipeline, which has a {INDEX_FILE}, nor a LoRA adapter, a "
            "folder with one safetensors file",
            option="FOLDER",
        )
    paths = sorted(path for path in _find_files(folder) if path != folder / MANIFEST_FILE)
    with ThreadPoolExecutor(_HASH_THREADS, thread_name_prefix="hash") as threads:
        digests = threads.map(hash_file, paths)
        return Manifest(
            tuple(
                FileRecord(path.relative_to(folder).as_posix(), path.stat().st_size, digest)
                for path, digest in zip(paths, digests, strict=True)
            )
        )


def _find_files(folder: Path, inside: tuple[Path, ...] = ()) -> Iterator[Path]:
    """All files but hidden ones, in which a hub keeps its metadata. Follows links to shared folders."""
    inside = (*inside, folder.resolve())
    for path in folder.iterdir():
        if path.name.startswith("."):
            continue
        if path.is_file():
            yield path
        elif path.is_dir() and path.resolve() not in inside:  # a link may lead back
            yield from _find_files(path, inside)


def is_variant(name: str) -> bool:
    """Whether diffusers loads the file only if asked for a variant, as `model.fp16.safetensors`."""
    return _VARIANT.search(name) is not None


def hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_inside(path: str) -> bool:
    parts = PurePosixPath(path)
    return bool(path) and "\\" not in path and not parts.is_absolute() and ".." not in parts.parts
