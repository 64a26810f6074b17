"""The models on this machine, wherever they come from: the package, folders, the hub's cache and S3's."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from filmgate.catalog.names import fold_name
from filmgate.models.names import SHIPPED, shipped_folder
from filmgate.models.weights import open_cache
from filmgate.models.weights.manifest import INDEX_FILE
from filmgate.settings import Settings


@dataclass(frozen=True, slots=True)
class StoredModel:
    """One line of `filmgate models list`. `model` is what `--model` takes."""

    model: str
    source: str
    folder: str
    size_bytes: int
    state: str
    revision: str = ""
    licence: str = ""
    used_at: float | None = None

    @property
    def is_whole(self) -> bool:
        return self.state != "incomplete"

    @property
    def used(self) -> str:
        return time.strftime("%Y-%m-%d %H:%M", time.gmtime(self.used_at)) if self.used_at else ""


def list_stored_models(settings: Settings) -> list[StoredModel]:
    """All models on this machine."""
    return [*_in_package(), *_in_folders(settings.models.folders), *_from_hub(), *_from_s3(settings)]


def search_models(text: str, models: list[StoredModel]) -> list[StoredModel]:
    """Those whose name, licence or source contains the text, in any spelling."""
    wanted = fold_name(text)
    return [m for m in models if any(wanted in fold_name(v) for v in (m.model, m.licence, m.source))]


def _in_package() -> Iterator[StoredModel]:
    for name in SHIPPED:
        folder = shipped_folder(name)
        yield StoredModel(name, "package", str(folder), _bytes_in(folder), "ready", licence="apache-2.0")


def _in_folders(setting: str) -> Iterator[StoredModel]:
    for parent in (part.strip() for part in setting.split(",") if part.strip()):
        for index in sorted(Path(parent).glob(f"*/{INDEX_FILE}")):
            yield StoredModel(
                str(index.parent), "folder", str(index.parent), _bytes_in(index.parent), "ready"
            )


def _from_hub() -> Iterator[StoredModel]:
    if find_spec("huggingface_hub") is None:  # without the worker extra, nothing can load these
        return
    from filmgate.models.weights.hub import list_hub_models  # noqa: PLC0415 - part of the worker extra

    for model in list_hub_models():
        size, state = model.manifest.total_bytes, "ready" if model.is_whole else "incomplete"
        yield StoredModel(model.id, "hub", str(model.folder), size, state, model.revision, model.licence)


def _from_s3(settings: Settings) -> Iterator[StoredModel]:
    for entry in open_cache(settings.models, settings.data).list_entries():
        state = "in use" if entry.is_in_use else "ready" if entry.is_published else "incomplete"
        folder, size = str(entry.model), entry.size_bytes
        yield StoredModel(entry.location.url, "s3", folder, size, state, used_at=entry.used_at)


def _bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
